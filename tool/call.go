package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
)

// Abilities are what a client said it can do for a handler that asks.
type Abilities uint16

const (
	CanElicit Abilities = 1 << iota
	CanElicitURL
	CanSample
	CanSampleTools
	CanListRoots
	CanTasks // it can follow a call that became a task

	// What follows is the host's word about the client, never the client's own.

	OnlyOperator // a yes of its person does not count where a call needs one: an operator's does
	WordCounts   // its own word that its person agreed does, because the settings say so
	Attended     // a person is beside the client of the call that this one is inside of
)

// Own returns the owner of what is the caller's alone, even where a team owns what its members make: its approvals, its
// answers to questions, and servers with its login.
func (c *Caller) Own() string { return cmp.Or(c.ID, c.Principal) + "/" + c.Context }

// SplitOwner gives the name of the principal and the context of an owner.
func SplitOwner(owner string) (principal, context string) {
	i := strings.LastIndexByte(owner, '/')
	principal, context = owner[:max(i, 0)], owner[i+1:]
	if name, number, ok := strings.Cut(principal, "~"); ok && number != "" && strings.Trim(number, "0123456789") == "" {
		principal = name // of a user whose name was another one's before
	}
	return principal, context
}

// Caller is who stands behind a call. It is plain data and crosses the bus.
type Caller struct {
	Principal string `json:"principal"`         // "anonymous" if no credentials were required
	ID        string `json:"id,omitempty"`      // who, for good: a name that is used again has another one; "" means the name
	Context   string `json:"context,omitempty"` // the named view the call came through
	Owner     string `json:"owner"`             // principal or team, and context: whose sandboxes, processes, jobs and spools these are
	Session   string `json:"session,omitempty"` // a lifetime hint; "" when there is none, and every tool works with ""
	// Connection names the connection of a legacy client that is a session of its own, so
	// that Session is "".
	Connection string `json:"connection,omitempty"`
	// Wire names the connection over which the request, or its legacy session, came to the host; two
	// requests with the same one came over one connection. "" means that it is not known.
	Wire   string   `json:"wire,omitempty"`
	Client string   `json:"client,omitempty"` // name/version the client gave; display only
	Roles  []string `json:"roles,omitempty"`  // what the principal is to this host
	Scopes []string `json:"scopes,omitempty"` // what the credential is good for; empty means all its principal may

	// Folders are those the client works in, as absolute paths: its calls get
	// these of the folders of their context. Empty means all of them. Named
	// says that the client's user named them; otherwise they are where the
	// client was started.
	Folders []string `json:"folders,omitempty"`
	Named   bool     `json:"named,omitempty"`

	// Local says that the caller is a program of the host's own user: it started
	// this host over its standard input, or came over the daemon's own socket.
	Local bool `json:"local,omitempty"`

	// Child says that the caller is a process that came of a child of the host.
	// It is never an administrator, and no person answers there.
	Child bool `json:"child,omitempty"`

	// Person says that a person logged in to the host for this caller, with a password, a passkey or a
	// link that was shown at a terminal, and that the call came from that login directly.
	Person bool `json:"person,omitempty"`

	// Unattended says that the host knows that no person is beside the caller: its token was made for a program that
	// runs on its own, or a provider issued its access token to a program and not to a user.
	Unattended bool `json:"unattended,omitempty"`

	Credential string    `json:"credential,omitempty"` // names what the principal was proven by; never a secret
	Trace      string    `json:"trace,omitempty"`      // W3C traceparent
	Can        Abilities `json:"can,omitempty"`
}

// MostUnpaged is how much a tool gives at once where Call.Unpaged is set, in
// bytes.
const MostUnpaged = 10 << 20

// A Call is one request as its handler sees it: plain data that may have
// crossed a bus, and capabilities opened by the node that runs it. It must
// not be kept after Run returns.
type Call struct {
	ID     string          // ours: unguessable, the same in every round
	Method string          // tools/call, resources/read, prompts/get, completion/complete
	Name   string          // the module's own name of the tool or prompt, or the URI; never a view's renaming
	Args   json.RawMessage // canonical: renames undone, checked against the schema, defaults in
	Params json.RawMessage // as the client sent them, for relays
	State  []byte          // what this handler last put into Input.State
	// Answers are those of the client to the questions of earlier rounds, by their keys,
	// where State is set. They are for relays, which set Result.Input themselves: nothing
	// has compared them with the questions. Other handlers get theirs from Peer.Ask.
	Answers map[string]Answer
	Caller  Caller

	// Forward holds headers of the client's request that a relay may pass on to the server it
	// relays, by canonical name: those that some server is allowed to get. They may be secrets.
	Forward map[string]string

	// Logs is the lowest level of the log messages that the client wants, as the protocol
	// names it: debug, info, notice, warning, error and so on; "" means that it wants none.
	Logs string

	// Unpaged means that the view gives results whole: a tool that pages itself
	// gives all there is, up to MostUnpaged, where the arguments
	// do not ask for a part.
	Unpaged bool

	// Task is the staged task in whose view of the folders the call runs; "" for the folders themselves.
	Task string

	Roots Roots // the folders this call may touch; never nil
	Peer  Peer  // the client of the call; never nil
}

// Roots are the folders a call may touch. Paths are resolved by the kernel
// inside an open root and never compared as strings. Safe for concurrent use.
type Roots interface {
	// Resolve finds the root a path lies in and the name inside it. A
	// relative path belongs to the first root. The root is shared: do not
	// close it. The error is a *Refusal that names no root.
	Resolve(path string) (root *os.Root, name string, err error)
	// List tells the roots in order; the first is the default.
	List() []Root
}

// Root is one named folder.
type Root struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// Peer is the other end of a call. Nothing here waits for the client or for
// a person. Safe for concurrent use until the handler returns; afterwards
// every method does nothing.
type Peer interface {
	// Progress tells how far the call is; total 0 means unknown. Updates are
	// coalesced, the latest wins, and one that does not advance is dropped.
	Progress(done, total float64, note string)
	// Log sends a log message to a client that asked for them. Data is any
	// JSON value, or a LogMessage.
	Log(level slog.Level, data any)
	// Output takes what the call prints while it works, of any size: it goes
	// to the spool, and its tail rides on progress.
	Output() io.Writer
	// Ask puts questions to the client. It returns the answers if all of
	// them are there, and otherwise ErrAsked, which the handler returns at
	// once; it runs again from the top when the answers have come. At most
	// 10 rounds. A question the client cannot answer is a *WireError that
	// names the missing ability.
	Ask(q ...Question) (map[string]Answer, error)
	// Recall and Record keep values between the rounds of one call; see Once.
	// At most 16 KiB in all.
	Recall(key string) (json.RawMessage, bool)
	Record(key string, v any) error
}

// LogMessage is the params of a log message of another server, an object. Peer.Log sends it
// unchanged.
type LogMessage json.RawMessage

// Question is one thing a handler asks of the client. Make it with Elicit,
// ElicitURL, Sample or ListRoots.
type Question struct {
	Key    string          `json:"key"` // names the answer; unique in its call
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`

	// Optional means that the call goes on without an answer: null stands for
	// the one of a client that cannot give it.
	Optional bool `json:"optional,omitempty"`
}

// Answer is the client's raw result object for one question. It has been
// checked against what was asked.
type Answer = json.RawMessage

// ErrAsked is what Peer.Ask returns when answers are missing.
var ErrAsked = errors.New("return this: the handler runs again from the top when the answers are there")

// Once runs f the first time a call gets here and remembers its result for
// the call's later rounds. Effects before a later Ask belong in it.
func Once[T any](c *Call, key string, f func() (T, error)) (v T, err error) {
	if b, ok := c.Peer.Recall(key); ok {
		return v, json.Unmarshal(b, &v)
	}
	if v, err = f(); err == nil {
		err = c.Peer.Record(key, v)
	}
	return v, err
}

// Detach asks that a client which waits on an open stream be sent away to
// come back for the rest, so that its connection is free while the call goes
// on. It does nothing where the client cannot come back.
func Detach(ctx context.Context, c *Call) {
	if d, ok := c.Peer.(interface{ Detach(context.Context) }); ok {
		d.Detach(ctx)
	}
}

// Keep says that a call may run again from the top with what it has recorded, because what it
// waits for goes on without this host. It reports whether the call is a job that the next host
// runs again if this one ends before it; without Keep such a job has failed. A call that is no
// job now can become one later.
func Keep(c *Call) bool {
	k, ok := c.Peer.(interface{ Keep() bool })
	return ok && k.Keep()
}

// JobOf returns the id of the job in which a handler runs, "" for none. again says that the job ran on a node that has
// died: what it does may be done already, in part or whole. See Def.Restartable.
func JobOf(c *Call) (id string, again bool) {
	if j, ok := c.Peer.(interface{ Job() (string, bool) }); ok {
		return j.Job()
	}
	return "", false
}

// Stay says that what a call of a tool with Def.Restartable does needs this node, such as a file of its machine, so
// that the job which the call starts from then on is lost with the node.
func Stay(c *Call) {
	if s, ok := c.Peer.(interface{ Stay() }); ok {
		s.Stay()
	}
}
