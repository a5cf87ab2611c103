package sandbox

// Outcome is the one word for how a call in a sandbox ended.
type Outcome string

const (
	OK          Outcome = "ok"           // it ended by itself with code 0
	Failed      Outcome = "error"        // it ended by itself with another code
	Signalled   Outcome = "signal"       // a signal ended it
	TimedOut    Outcome = "timeout"      // it was ended because its time was up
	OutOfMemory Outcome = "oom"          // the kernel ended it for want of memory
	OutputLimit Outcome = "output-limit" // it was ended because it printed too much
	Lost        Outcome = "lost"         // nobody knows: the channel to it broke before its status came
)

// Evidence is what was seen of a call's end.
type Evidence struct {
	Reaped     bool // Code and Signal are the status the kernel gave
	Code       int
	Signal     int
	TimeUp     bool // the host ended it at its deadline
	OutputFull bool // the host ended it for its output
	OOMKills   int  // the rise of the memory controller's count during the call; without a status, up to the sandbox's end
}

// Judge finds the word for what was seen. What the host did itself explains a
// signal better than the signal does, and without a status nothing is ever
// called ok.
func (e Evidence) Judge() Outcome {
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
