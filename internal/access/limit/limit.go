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
	// Rate is how many requests a second one principal may make, and one
	// session; 0 means no limit. On standard input and loopback there is none
	// unless it is set, elsewhere it is DefaultRate.
	Rate  float64
	Burst int // requests that may come at once; 0 means twice the rate, at least 1
	// Keys is how many principals and sessions are remembered; 0 means 65,536. Tests set it,
	// because no other host has that many.
	Keys int
	// Hold is how long a request that came too soon may be kept waiting, for
	// its turn or for its refusal; 0 means 1 s, negative not at all.
	// Tests set it, so as not to wait.
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

// The rate beyond loopback, when nothing is said.
const (
	DefaultRate  = 50
	DefaultBurst = 100
)

// The sessions that one principal may open, a second and at once, on this machine too.
const (
	openRate  = 500
	openBurst = 2000
)

// Limits are the limits of one host. Safe for concurrent use.
type Limits struct {
	*Rates
	*Queue
	Opens   *Rates  // of sessions
	Bytes   *Shares // of messages that are being read or have not been answered
	Streams *Shares // of events that are open
}

// New makes Limits.
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
	}
}

// Busy says that there was no space, or that a caller came too often.
type Busy struct {
	Why   string        // for the caller
	Retry time.Duration // when to come again; at least 1 s
}

func (b *Busy) Error() string { return fmt.Sprintf("busy: %s; try again in %d s", b.Why, b.Seconds()) }

// Seconds is Retry as the Retry-After header has it.
func (b *Busy) Seconds() int { return seconds(b.Retry) }

// seconds rounds up, to at least one.
func seconds(d time.Duration) int {
	return max(1, int((d+time.Second-1)/time.Second))
}

// Stats are what metrics show. Counters only grow.
type Stats struct {
	Running int // calls that run, those that found no slot of their own included
	Waiting int // calls that wait
	Keys    int // principals and sessions whose rate is remembered
	Held    int // requests that wait because they came too soon

	Entered   uint64        // calls that were let in
	Queued    uint64        // of those, how many had to wait
	Waited    time.Duration // how long, all together
	Full      uint64        // calls refused because too many waited
	Late      uint64        // calls that waited in vain
	Bytes     int64         // of messages that are being read or have not been answered
	Streams   int64         // of events that are open
	NoBytes   uint64        // messages refused because their caller had its share of the bytes
	NoStreams uint64        // likewise streams
	Allowed   uint64        // requests within their rate
	TooSoon   uint64        // requests refused because they came too often
}

// Stats of both halves.
func (l *Limits) Stats() Stats {
	s := l.Queue.Stats()
	r := l.Rates.Stats()
	s.Bytes, s.NoBytes = l.Bytes.Usage()
	s.Streams, s.NoStreams = l.Streams.Usage()
	s.Keys, s.Held, s.Allowed, s.TooSoon = s.Keys+r.Keys, s.Held+r.Held, s.Allowed+r.Allowed, s.TooSoon+r.TooSoon
	return s
}
