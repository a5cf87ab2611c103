package sandbox

// Outcome says in one word how a call in a sandbox ended.
type Outcome string

const (
	OK          Outcome = "ok"           // it exited with code 0
	Failed      Outcome = "error"        // it exited with another code
	Signalled   Outcome = "signal"       // a signal killed it
	TimedOut    Outcome = "timeout"      // it was killed because its time was up
	OutOfMemory Outcome = "oom"          // the kernel killed it because memory ran out
	OutputLimit Outcome = "output-limit" // it was killed because it printed too much
	Lost        Outcome = "lost"         // unknown: the channel to the sandbox broke before the exit status arrived
)

// Evidence is what was observed of a call's end.
type Evidence struct {
	Reaped     bool // Code and Signal are the status that the kernel reported
	Code       int
	Signal     int
	TimeUp     bool // the host killed it at its deadline
	OutputFull bool // the host killed it for its output
	// the rise of the memory controller's count during the call; without a status, up to the sandbox's end
	OOMKills int
}

// Outcome returns the outcome. What the host did itself explains a signal better than the signal does, and
// without a status no call is ever OK.
func (e Evidence) Outcome() Outcome {
	switch {
	case e.TimeUp:
		return TimedOut
	case e.OutputFull:
		return OutputLimit
	case !e.Reaped && e.OOMKills > 0:
		return OutOfMemory // the sandbox ended with its memory
	case !e.Reaped:
		return Lost
	case e.OOMKills > 0 && (e.Signal != 0 || e.Code != 0):
		return OutOfMemory
	case e.Signal != 0:
		return Signalled
	case e.Code != 0:
		return Failed
	}
	return OK
}
