package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"sync"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// subjects are the facts that Watch writes down. Calls are not among them:
// dispatch writes them itself, because they must not be lost.
var subjects = []string{
	"session.>", "auth.>", "login.>", "user.>", "token.>", "context.>", "config.>", "approval.>", "secret.>", "connection.>", "module.*", "package.>",
	"module.sandbox.sandbox.network", // what code in a sandbox was let out to
	"module.shell.program.*",         // what programs a line with lists has started
}

// keepFacts is how many facts of one subject may wait for us.
const keepFacts = 4096

// Watch records the events on the bus about sessions, logins, users,
// tokens, contexts, settings, approvals and connections, and of ways out of sandboxes, until ctx is done. It
// listens from the moment it is called; what it returns does the writing. A
// fact that another process has kept is not written down again. A
// fact may fall out when thousands come at once, and then the next line says
// how many did; what must not be lost is given to Keep instead.
func (l *Ledger) Watch(ctx context.Context, b bus.Bus) (run func() error) {
	var heard []iter.Seq[bus.Event]
	for _, pattern := range subjects {
		heard = append(heard, b.Follow(ctx, pattern, keepFacts))
	}
	return func() error {
		var all sync.WaitGroup
		for _, facts := range heard {
			all.Go(func() {
				for f := range facts {
					if !f.Kept {
						l.Note(EntryOf(f))
					}
				}
			})
		}
		all.Wait()
		return nil
	}
}

// EntryOf returns the entry of an event. Members of its data that an entry has a
// field for go there, everything is kept redacted as its arguments.
func EntryOf(f bus.Event) Entry {
	e := Entry{At: f.At, Kind: f.Subject, Level: factLevel(f.Subject), Principal: principalOf(f.Owner)}
	if f.Lost > 0 {
		e.Reason = fmt.Sprintf("%d facts before this one came too fast to be kept", f.Lost)
	}
	if rawjson.Check(f.Data, 0) != nil || rawjson.Kind(f.Data) != '{' {
		return e
	}
	fields := map[string]*string{ // by names in lower case
		"principal": &e.Principal, "user": &e.Principal, "credential": &e.Credential, "session": &e.Session,
		"context": &e.Context, "client": &e.Client, "outcome": &e.Outcome, "reason": &e.Reason, "tool": &e.Tool, "call": &e.Call, "rule": &e.Rule,
	}
	var rest []rawjson.Edit
	for key, v := range rawjson.Object(f.Data) {
		if into := fields[strings.ToLower(string(key))]; into != nil && rawjson.Kind(v) == '"' {
			if text, ok := rawjson.String(v); ok && text != "" {
				*into = text
				rest = append(rest, rawjson.Edit{Key: string(key)})
			}
		}
	}
	if e.Outcome == "" && strings.HasSuffix(f.Subject, "_failed") {
		e.Outcome = Denied
	}
	if e.Args = json.RawMessage(rawjson.Splice(f.Data, rest...)); string(e.Args) == "{}" {
		e.Args = nil
	}
	return e
}

// principalOf is the first half of an owner.
func principalOf(owner string) string {
	if principal, _ := tool.SplitOwner(owner); principal != "" {
		return principal
	}
	return owner
}

// factLevel is security for all but the coming and going of sessions.
func factLevel(subject string) Level {
	if strings.HasPrefix(subject, "session.") {
		return Info
	}
	return Security
}
