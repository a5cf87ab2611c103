package code

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/tool"
)

// runOut is the result of a program.
type runOut struct {
	Text     string     `json:"text" text:"product" doc:"what it printed, and then what it returned"`
	Returned any        `json:"returned,omitempty" text:"facts" doc:"what it returned"`
	Outcome  string     `json:"outcome" enum:"ok,error,signal,timeout,oom,output-limit,lost"`
	Error    string     `json:"error,omitempty" doc:"the exception that ended it"`
	Calls    []callLine `json:"calls" doc:"the calls of tools that it made"`
	Run      string     `json:"run" doc:"names the program in code_list"`
	Took     float64    `json:"took_ms"`
}

// callLine stands for calls of one tool from one line with one outcome.
type callLine struct {
	Tool    string `json:"tool"`
	Line    int    `json:"line,omitempty" doc:"where, as the program states"`
	Times   int    `json:"times"`
	Outcome string `json:"outcome" doc:"ok, failed, expired, or running: begun, and not known to have ended"`
}

// Facts implements tool.Facter.
func (o runOut) Facts() string {
	words := []string{o.Outcome}
	if o.Error != "" {
		words = append(words, "error="+tool.Fact(o.Error))
	}
	return tool.Facts(append(words, "calls: "+callsText(o.Calls), fmt.Sprintf("took %.0f ms", o.Took))...)
}

func callsText(calls []callLine) string {
	if len(calls) == 0 {
		return "none"
	}
	var words []string
	for _, c := range calls {
		word := tool.Fact(c.Tool)
		if c.Times > 1 {
			word += fmt.Sprintf(" x%d", c.Times)
		}
		if c.Line > 0 {
			word += fmt.Sprintf(" (line %d)", c.Line)
		}
		if c.Outcome != callOK {
			word += " " + c.Outcome
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

func (r *run) result(res interpreter.Result) *runOut {
	r.mu.Lock()
	returned := r.returned
	r.mu.Unlock()
	out := &runOut{
		Text: r.traced(r.output.transcriptText()), Outcome: string(res.Outcome), Calls: r.log.lines(), Run: r.id,
		Took: float64(res.Took.Microseconds()) / 1000,
	}
	if res.Error != nil {
		out.Error = displaytext.Visible([]byte(res.Error.Name + ": " + res.Error.Message))
	}
	if out.Outcome == string(sandbox.TimedOut) || errors.Is(context.Cause(r.calls), errExpired) {
		out.Outcome = string(sandbox.TimedOut)
	}
	if returned != nil {
		out.Returned = returned
		if out.Text != "" && !strings.HasSuffix(out.Text, "\n") {
			out.Text += "\n"
		}
		if s, ok := rawjson.String(returned); ok {
			out.Text += displaytext.Visible([]byte(s))
		} else {
			out.Text += displaytext.Visible(returned)
		}
	}
	return out
}

// Outcomes of calls, besides callRunning and "failed".
const (
	callOK      = "ok"
	callExpired = "expired"
)

func outcomeOf(err error) string {
	var expired *expiredError
	switch {
	case err == nil:
		return callOK
	case errors.As(err, &expired), errors.Is(err, errExpired):
		return callExpired
	}
	return "failed"
}
