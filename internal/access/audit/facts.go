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

// subjects are the events that Watch records. Calls are not among them: dispatch records them itself,
// because they must not be lost.
var subjects = []string{
	"session.>", "auth.>", "login.>", "user.>", "token.>", "context.>", "config.>", "approval.>", "secret.>",
	"connection.>", "module.*", "package.>", "task.>",
	"module.sandbox.sandbox.network", // network access that was allowed to a sandbox
	"module.webview.browser.network", // addresses that pages reached, and those they were refused
	"module.shell.program.*",         // what programs a line with lists has started
}

// keepFacts is how many events of one subject may wait to be recorded.
const keepFacts = 4096

// RecordEvents subscribes to the events about sessions, logins, users, tokens, contexts, settings, approvals, staged tasks,
// connections and network access of sandboxes, and returns a function that records them until ctx is
// done. An event that another process has recorded is not recorded again. Events may be lost if
// thousands arrive at once; the next line then reports how many. What must not be lost is given to Keep
// instead.
func (l *Ledger) RecordEvents(ctx context.Context, b bus.Bus) (run func() error) {
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

// EntryOf returns the entry of an event. Members of its data for which an entry has a field go there;
// all data is kept redacted as the arguments.
func EntryOf(f bus.Event) Entry {
	e := Entry{At: f.At, Kind: f.Subject, Level: factLevel(f.Subject), Principal: principalOf(f.Owner)}
	if f.Lost > 0 {
		e.Reason = fmt.Sprintf("%d events before this one arrived too fast to be recorded", f.Lost)
	}
	if rawjson.Check(f.Data, 0) != nil || rawjson.Kind(f.Data) != '{' {
		return e
	}
	fields := map[string]*string{ // by name in lower case
		"principal": &e.Principal, "user": &e.Principal, "credential": &e.Credential, "session": &e.Session,
		"context": &e.Context, "client": &e.Client, "outcome": &e.Outcome, "reason": &e.Reason, "tool": &e.Tool,
		"call": &e.Call, "rule": &e.Rule, "task": &e.Task,
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

// principalOf returns the principal of an owner, its first half.
func principalOf(owner string) string {
	if principal, _ := tool.SplitOwner(owner); principal != "" {
		return principal
	}
	return owner
}

// factLevel returns Security for all events except the start and end of sessions.
func factLevel(subject string) Level {
	if strings.HasPrefix(subject, "session.") {
		return Info
	}
	return Security
}
