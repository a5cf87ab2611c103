// Package limit slows callers down so that none of them can take the host from
// the others: how often they may come (Rates), how many calls run at once and who
// is next (Queue), and how much each may hold of everything else that is counted
// (Shares).
package limit

import (
	"cmp"
	"fmt"
	"time"

	"gatehouse/internal/access/operator"
)

// Options of New. Zero values are replaced by the defaults that are named.
type Options struct {
	// Rate is how many requests per second one principal may make, and one session; 0 means the
	// default, which is no limit on standard input and loopback, and DefaultRate elsewhere.
	Rate  float64
	Burst int // requests that may come at once; 0 means twice the rate, at least 1
	// Keys is how many principals and sessions are tracked; 0 means 65,536. Tests set it to a smaller
	// number.
	Keys int
	// Hold is how long a request that came too soon may be delayed, for its turn or for its refusal; 0
	// means 1 s, negative not at all. Tests set it to save time.
	Hold time.Duration

	Calls   int // that run at once on this host; 0 means 1,024
	Session int // that run at once for one session; 0 means 64
	Tool    int // that run at once of one tool; 0 means as many as on the host
	Waiting int // calls that wait on this host, half of them of one principal; 0 means sixteen times Calls
	// Line is how many calls wait for one session; 0 means a quarter of Waiting. Tests set it,
	// to fill it with few calls.
	Line int

	// Bytes is the memory for messages that are being read or have not been answered;
	// 0 means 128 MiB. It is never less than four of the largest messages.
	Bytes   int64
	Message int64 // bytes of the largest message
	Streams int   // event streams that are open at once; 0 means 40,000
	// Administrator reports who gets what is kept for administrators; nil means no
	// caller.
	Administrator operator.Func
}

// The rate beyond loopback if none is configured.
const (
	DefaultRate  = 50
	DefaultBurst = 100
)

// The sessions that one principal may open, a second and at once, on this machine too.
const (
	openRate  = 500
	openBurst = 2000
)

// Limits holds the limits of one host. It is safe for concurrent use.
type Limits struct {
	*Rates
	*Queue
	Opens   *Rates  // of sessions
	Bytes   *Shares // of messages that are being read or have not been answered
	Streams *Shares // of events that are open
	Starts  *Starts // of programs
}

// New returns Limits.
func New(o Options) *Limits {
	return &Limits{
		Rates: NewRates(o),
		Queue: NewQueue(o),
		Opens: NewRates(Options{Rate: openRate, Burst: openBurst}),
		Bytes: NewShares(Resource{
			Name: "bytes of open messages", Total: max(cmp.Or(o.Bytes, 128<<20), 4*o.Message), Kept: o.Message,
			Administrator: o.Administrator,
		}),
		Streams: NewShares(Resource{
			Name: "event streams", Total: int64(cmp.Or(o.Streams, 40_000)), Administrator: o.Administrator,
		}),
		Starts: NewStarts(),
	}
}

// Join makes limits those of all hosts of a group together: the rates of requests, of sessions that are opened and of
// calls in contexts, and how many calls run at once in a context. How many run at once on a host, for a session and of
// a tool is each host's own.
func (l *Limits) Join(g *Group) {
	g.add("requests", l.Rates)
	g.add("sessions", l.Opens)
	g.mu.Lock()
	g.queue = l.Queue
	g.mu.Unlock()
	l.Queue.mu.Lock()
	defer l.Queue.mu.Unlock()
	l.Queue.group = g
	for name, c := range l.Queue.contexts {
		g.add("context "+name, c.rates)
		l.Queue.setLimits(name, c, c.limits)
	}
}

// Busy is the error of a caller that came too often, or found no free slot and no free place in the
// queue.
type Busy struct {
	Why   string        // for the caller
	Retry time.Duration // when to try again; at least 1 s
}

func (b *Busy) Error() string { return fmt.Sprintf("busy: %s; try again in %d s", b.Why, b.Seconds()) }

// Seconds returns Retry in the form of the Retry-After header.
func (b *Busy) Seconds() int { return seconds(b.Retry) }

// seconds rounds up, to at least one.
func seconds(d time.Duration) int {
	return max(1, int((d+time.Second-1)/time.Second))
}

// Stats holds the values of the metrics. Counters only grow.
type Stats struct {
	Running int // calls that run, including nested calls without a slot of their own
	Waiting int // calls that wait
	Keys    int // principals and sessions whose rate is tracked
	Held    int // requests that are delayed because they came too soon

	Entered   uint64        // calls that were admitted
	Queued    uint64        // of those, how many had to wait
	Waited    time.Duration // their total waiting time
	Full      uint64        // calls refused because too many waited
	Late      uint64        // calls that waited too long and were refused
	Bytes     int64         // of messages that are being read or have not been answered
	Streams   int64         // of events that are open
	NoBytes   uint64        // messages refused because their caller had its share of the bytes
	NoStreams uint64        // likewise streams
	Allowed   uint64        // requests within their rate
	TooSoon   uint64        // requests refused because they came too often
}

// Stats returns the values of both parts.
func (l *Limits) Stats() Stats {
	s := l.Queue.Stats()
	r := l.Rates.Stats()
	s.Bytes, s.NoBytes = l.Bytes.Usage()
	s.Streams, s.NoStreams = l.Streams.Usage()
	s.Keys, s.Held, s.Allowed, s.TooSoon = s.Keys+r.Keys, s.Held+r.Held, s.Allowed+r.Allowed, s.TooSoon+r.TooSoon
	return s
}
