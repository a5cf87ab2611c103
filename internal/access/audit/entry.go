package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/tool"
)

// Level is the importance of a line.
type Level string

const (
	Info     Level = "info"
	Security Level = "security" // it changed something, reached outside the host, or was denied
)

// Outcomes of calls.
const (
	Started   = "started"   // the intent: the call is about to run
	OK        = "ok"        //
	Failed    = "error"     // an error for the client program
	Refused   = "refused"   // by the tool or its schema
	Denied    = "denied"    // by the policy
	Busy      = "busy"      // a limit was reached
	Asked     = "asked"     // it asks the client for input and will be run again
	Cancelled = "cancelled" //
	TimedOut  = "timeout"   //
	Overdue   = "overdue"   // it ended long after it was answered
	Pending   = "pending"   // it waits for an operator
	Approved  = "approved"  //
)

// Entry is the content of a line. Empty fields are left out; texts are cut at 256 bytes.
type Entry struct {
	At    time.Time // zero means now
	Kind  string    // call, session.created, auth.login, config.changed, ...
	Level Level     // "" means Info

	Principal  string
	Credential string // its public ID
	Session    string // its ID; only a hash is kept
	Context    string
	Client     string

	Task   string // the staged task of the caller, in whose view the call ran
	Direct bool   // the call was not staged, although the caller has the task
	Call   string // the ID of the call, the same in every round
	Method string
	Module string
	Tool   string // or prompt, or URI
	Depth  int

	Args    json.RawMessage // checked JSON; kept redacted, and as a digest
	Input   *schema.Schema  // of Args; names the members that are secret. nil decides by their names
	Outcome string
	Reason  string        // of a refusal or an error
	Rule    string        // of the policy that decided
	Took    time.Duration // 0 omits it
}

// Line is an Entry read from the ledger.
type Line struct {
	Seq        int64           `json:"seq"`
	Prev       string          `json:"prev"` // SHA-256 of the line before, in hex
	At         time.Time       `json:"at"`
	Node       string          `json:"node"`
	OSUser     string          `json:"os_user"`
	Kind       string          `json:"kind"`
	Level      Level           `json:"level"`
	Principal  string          `json:"principal,omitempty"`
	Credential string          `json:"credential,omitempty"`
	Session    string          `json:"session,omitempty"` // the first 16 hex digits of the SHA-256 of its id
	Context    string          `json:"context,omitempty"`
	Client     string          `json:"client,omitempty"`
	Task       string          `json:"task,omitempty"` // the staged task
	Direct     bool            `json:"direct,omitempty" doc:"it was not staged, although its caller had the task"`
	Call       string          `json:"call,omitempty"`
	Method     string          `json:"method,omitempty"`
	Module     string          `json:"module,omitempty"`
	Tool       string          `json:"tool,omitempty"`
	Depth      int             `json:"depth,omitempty"`
	Digest     string          `json:"digest,omitempty"`              // SHA-256 of the arguments, in hex
	Args       json.RawMessage `json:"args,omitempty" doc:"redacted"` // redacted, at most 2 KiB
	Outcome    string          `json:"outcome,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	Rule       string          `json:"rule,omitempty"`
	Millis     float64         `json:"ms,omitempty"`

	Raw []byte `json:"-"` // the line itself, without its newline
}

// levels are the tools whose level does not follow from their effects: those that reach outside the
// host although they change nothing, and small changes that are so frequent that they would hide
// important lines.
var levels = map[string]Level{
	"process_start": Security, "process_stop": Security, "process_kill": Security, "process_input": Security,
	"rag_ingest": Security, "ws_start": Security, "webview_connect": Security, "webview_eval": Security,
	"metrics_record": Info, "webview_navigate": Info, "webview_click": Info, "webview_type": Info,
	"webview_disconnect": Info, "ide_chat_send": Info, "ide_session_create": Info,
}

// private are the arguments of tools that are kept as a digest only, because the input of a process is
// often a password, and a settings file holds some.
var private = map[string]map[string]bool{"process_input": {"input": true}, "config_check": {"text": true}}

// LevelOf returns the level of a call of a tool, by the tool's name and effects.
func LevelOf(name string, e tool.Effects) Level {
	if l, ok := levels[name]; ok {
		return l
	}
	if e.ReadOnly() {
		return Info
	}
	return Security
}

const longestText = 256 // bytes of one text in a line

// append writes the entry as JSON members, separated by commas and without braces: number and chain are
// put in front later.
func (e *Entry) append(b, who []byte, seen *seen) []byte {
	at := e.At
	if y := at.Year(); y < 1970 || y > 9999 { // zero, or outside the format of a line
		at = time.Now()
	}
	b = append(b, `"at":"`...)
	b = seen.second.append(b, at)
	b = append(b, `",`...)
	b = append(b, who...)
	b = appendMember(b, "kind", e.Kind)
	level := e.Level
	if level == "" {
		level = Info
	}
	b = appendMember(b, "level", string(level))
	b = appendMember(b, "principal", e.Principal)
	b = appendMember(b, "credential", e.Credential)
	if e.Session != "" {
		b = append(b, `"session":"`...)
		b = seen.sessions.append(b, e.Session)
		b = append(b, `",`...)
	}
	b = appendMember(b, "context", e.Context)
	b = appendMember(b, "client", e.Client)
	b = appendMember(b, "task", e.Task)
	if e.Direct {
		b = append(b, `"direct":true,`...)
	}
	b = appendMember(b, "call", e.Call)
	b = appendMember(b, "method", e.Method)
	b = appendMember(b, "module", e.Module)
	b = appendMember(b, "tool", e.Tool)
	if e.Depth > 0 {
		b = append(b, `"depth":`...)
		b = strconv.AppendInt(b, int64(e.Depth), 10)
		b = append(b, ',')
	}
	reason := e.Reason
	if len(e.Args) > 0 {
		h := sha256.Sum256(e.Args)
		b = append(b, `"digest":"`...)
		b = hex.AppendEncode(b, h[:])
		b = append(b, `","args":`...)
		from := len(b)
		var masked [][]byte
		b, masked = redact(b, e.Args, &seen.members, seen.secrets.secretsOf(e.Input), private[e.Tool], seen.secrets.shapeOf(e.Input))
		if rawjson.Check(b[from:], 0) != nil {
			b = append(b[:from], left...) // they were not validated, and the line must stay valid JSON
		}
		reason = hideMasked(reason, masked)
		b = append(b, ',')
	}
	b = appendMember(b, "outcome", e.Outcome)
	b = appendReason(b, reason)
	b = appendMember(b, "rule", e.Rule)
	if e.Took > 0 {
		b = append(b, `"ms":`...)
		b = appendMillis(b, e.Took)
		b = append(b, ',')
	}
	return b[:len(b)-1]
}

// appendMember writes a member that holds a text, and a comma. It writes nothing if the text is empty.
func appendMember(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `":`...)
	b = rawjson.AppendString(b, displaytext.Cut(text, longestText, "…"))
	return append(b, ',')
}

// appendReason is appendMember for messages of tools, which may quote a secret.
func appendReason(b []byte, text string) []byte {
	if text == "" {
		return b
	}
	from := len(b)
	b = appendMember(b, "reason", text)
	member := string(b[from:])
	return appendMasked(b[:from], []byte(member))
}

// appendTime writes a time in microseconds, UTC, always in the same width.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = append(appendDigits(b, year, 1000), '-')
	b = append(appendDigits(b, int(month), 10), '-')
	b = append(appendDigits(b, day, 10), 'T')
	b = append(appendDigits(b, hour, 10), ':')
	b = append(appendDigits(b, minute, 10), ':')
	b = append(appendDigits(b, second, 10), '.')
	return append(appendDigits(b, t.Nanosecond()/1000, 100_000), 'Z')
}

// clockText caches the text of the second that was written last, because many lines share a second. The
// zero value is ready. It is safe for concurrent use.
type clockText struct{ last atomic.Pointer[secondText] }

type secondText struct {
	unix int64
	text [len("2006-01-02T15:04:05.")]byte
}

// append appends a time as appendTime does.
func (c *clockText) append(b []byte, t time.Time) []byte {
	s := c.last.Load()
	if s == nil || s.unix != t.Unix() {
		s = &secondText{unix: t.Unix()}
		copy(s.text[:], appendTime(nil, t))
		c.last.Store(s)
	}
	b = append(b, s.text[:]...)
	us := t.Nanosecond() / 1000
	return append(
		b,
		byte('0'+us/100_000),
		byte('0'+us/10_000%10),
		byte('0'+us/1000%10),
		byte('0'+us/100%10),
		byte('0'+us/10%10),
		byte('0'+us%10),
		'Z',
	)
}

// appendMillis writes a duration in milliseconds, with the precision of microseconds and without zeros
// at the end.
func appendMillis(b []byte, d time.Duration) []byte {
	us := d.Microseconds()
	b = strconv.AppendInt(b, us/1000, 10)
	if us %= 1000; us == 0 {
		return b
	}
	b = append(b, '.', byte('0'+us/100), byte('0'+us/10%10), byte('0'+us%10))
	for b[len(b)-1] == '0' {
		b = b[:len(b)-1]
	}
	return b
}

// appendDigits writes a number with as many digits as the power of ten of its first digit has.
func appendDigits(b []byte, n, power int) []byte {
	for ; power > 0; power /= 10 {
		b = append(b, byte('0'+n/power%10))
	}
	return b
}
