package code

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// longest is the time limit of one request that waits for a program, which is longer than any program runs.
const longest = 25 * time.Hour

type runIn struct {
	Language string  `json:"language" enum:"python,javascript,typescript"`
	Code     string  `json:"code" doc:"the program; tools.NAME(argument=value) in Python and await tools.NAME({argument: value}) in the others call a tool" min:"1" max:"262144" example:"print(6 * 7)"`
	Timeout  float64 `json:"timeout,omitempty" doc:"seconds that it may run; default 60" min:"0" max:"86400"`
}

const runHelp = `The program runs in a sandbox of its own, without network and without files of the host. It calls your
tools by their names, and gets what they return as values of its language: the structured result, or the text of a tool
that declares no schema for its result. Only what the program prints, and what it returns with ` + "`return`" + ` at its
top level, comes back.

- Python: ` + "`tools.NAME(argument=value)`" + `. ` + "`tools.NAME.later(...)`" + ` starts a call and goes on, and
  ` + "`tools.gather(a, b)`" + ` waits for such calls; threads may call too.
- JavaScript and TypeScript, whose types are not checked: ` + "`await tools.NAME({ argument: value })`" + `, with ` + "`Promise.all`" + ` for several at once.
- A tool that refuses or fails raises ToolError. If the time of the program is up, or a question to the user was not
  answered in time, calls raise Expired.
- The signatures of all tools are in ` + "`/tmp/tools/tools.pyi`" + ` and ` + "`/tmp/tools/tools.d.ts`" + `.
- Every call is checked, limited and recorded as a call of yours. Tools that ask the user can be called only if the
  context allows it. The program is then frozen until the answer is there; it is never started again.
- The result says which tools were called, from which line, and how that ended.`

// runTool runs a program.
func (m *programs) runTool() tool.Tool {
	t := tool.New(tool.Def{
		Name: "code_run", Title: "Run a program", Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Hosts: true,
		Timeout: longest,
		Description: "Runs a program in a sandbox that can call your other tools as functions (tools.NAME), for many " +
			"calls or large results at once. Only what it prints or returns comes back.",
		Help: runHelp,
	}, func(ctx context.Context, c *tool.Call, in runIn) (tool.Result, error) {
		if len(c.State) > 0 {
			return m.again(ctx, c)
		}
		l, ok := languages[in.Language]
		if !ok {
			return tool.Result{}, tool.Refuse(tool.CodeInvalidArguments, "there is no language %s", in.Language)
		}
		s := m.cfg.Settings
		limit := s.Timeout
		if in.Timeout > 0 {
			limit = min(time.Duration(in.Timeout*float64(time.Second)), s.Longest)
		}
		r, err := m.start(ctx, c, l, in.Code, json.RawMessage("{}"), limit)
		if err != nil {
			return tool.Result{}, err
		}
		return r.attach(ctx, c)
	})
	t.Out = reflect.TypeFor[runOut]() // the handler makes its result itself, because it may ask
	t.Staged = true                   // what it changes are calls of tools, each of which is staged, asks or is refused itself
	return t
}

// again attaches to the program that a state names. It never starts one.
func (m *programs) again(ctx context.Context, c *tool.Call) (tool.Result, error) {
	id := string(c.State)
	if r := m.findRun(c.Caller.Owner, id); r != nil {
		return r.attach(ctx, c)
	}
	said := "this host does not have the program any more"
	all, err := m.journal.listRuns(c.Caller.Owner)
	for _, r := range all {
		if r.Run == id {
			said = r.text()
		}
	}
	if err != nil {
		said += ": " + err.Error()
	}
	return tool.Result{}, &tool.Refusal{
		Code:    tool.CodeGone,
		Message: said,
		Next:    "Check what it did before you run it again.",
	}
}

// text says how a recorded program ended.
func (r *recorded) text() string {
	state := r.over
	switch {
	case r.over == "" && r.runs:
		state = "running"
	case r.over == "":
		state = "interrupted, because the host ended"
	}
	return fmt.Sprintf("%s (%s, %s): %s; calls: %s", r.Run, r.Language, r.Began.Format(time.RFC3339), state,
		callsText(summarize(r.calls)))
}

type listIn struct {
	Limit int `json:"limit,omitempty" doc:"programs" default:"10" min:"1" max:"100"`
}

type listOut struct {
	Text     string        `json:"text" text:"product"`
	Programs []programLine `json:"programs" text:"facts"`
	module.Unreached
}

type programLine struct {
	Run      string     `json:"run"`
	Language string     `json:"language"`
	Began    time.Time  `json:"began"`
	State    string     `json:"state" doc:"running, interrupted, or how it ended"`
	Calls    []callLine `json:"calls"`
	module.OnNode
}

// listTool lists programs, also those that a host could not finish.
func (m *programs) listTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "code_list", Title: "List programs", Effects: tool.Reads, Task: tool.TaskNever,
		Description: "Lists your programs of the last day and the tools that each has called, also of those that were " +
			"interrupted because the host ended.",
	}, func(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
		all, err := m.journal.listRuns(c.Caller.Owner)
		if err != nil {
			return listOut{}, err
		}
		out := listOut{Programs: []programLine{}}
		var lines []string
		for _, r := range all[:min(len(all), in.Limit)] {
			state := r.over
			switch {
			case state == "" && r.runs:
				state = "running"
			case state == "":
				state = "interrupted"
			}
			out.Programs = append(out.Programs, programLine{
				r.Run, r.Language, r.Began, state, summarize(r.calls), module.OnNode{Node: m.deps.Node},
			})
			lines = append(lines, r.text())
		}
		out.Unreached.Unreached = module.Gather(ctx, m.deps, c, func(node string, there listOut) {
			if len(there.Programs) > 0 {
				out.Programs = append(out.Programs, there.Programs...)
				lines = append(lines, "on node "+node+":", there.Text)
			}
		})
		if out.Text = strings.Join(lines, "\n"); len(lines) == 0 {
			out.Text = "no programs"
		}
		return out, nil
	})
}
