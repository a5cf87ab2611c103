package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/delayed"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

// how holds the parameters of running code or a command.
type how struct {
	Timeout  float64  `json:"timeout,omitempty" doc:"seconds; default: the sandbox's (30)" min:"0" max:"86400"`
	Stdin    string   `json:"stdin,omitempty" doc:"standard input"`
	Dir      string   `json:"dir,omitempty" doc:"working directory; default: the home folder"`
	Env      []string `json:"env,omitempty" doc:"NAME=value, in addition to the sandbox's"`
	Template string   `json:"template,omitempty" doc:"without sandbox_id: the template of the sandbox"`
	Separate bool     `json:"separate,omitempty" doc:"return standard output and standard error separately"`
}

type codeIn struct {
	ID       string `json:"sandbox_id,omitempty" doc:"default: a new one that ends with the call; required by the preset sandbox"`
	Language string `json:"language" doc:"python, node, bash or sh; also python3, javascript, js and shell"`
	Code     string `json:"code"`
	Context  string `json:"context_id,omitempty" doc:"from sandbox_context: run the code with the state of earlier code; default: as a program of its own"`
	how
}

type commandIn struct {
	ID      string `json:"sandbox_id,omitempty" doc:"default: a new one that ends with the call; required by the preset sandbox"`
	Command string `json:"command" doc:"a shell command line"`
	how
}

// ranOut is the result of code or a command.
type ranOut struct {
	ExitCode  int      `json:"exit_code" doc:"-1 if it did not exit on its own"`
	Outcome   string   `json:"outcome,omitempty" enum:"ok,error,signal,timeout,oom,output-limit,lost"`
	Output    *string  `json:"output,omitempty" text:"product" doc:"standard output and standard error in order of arrival"`
	Stdout    string   `json:"stdout,omitempty"`
	Stderr    string   `json:"stderr,omitempty"`
	Signal    int      `json:"signal,omitempty" doc:"the signal that killed it"`
	Error     *failure `json:"error,omitempty" doc:"an uncaught error of the code"`
	Forgotten bool     `json:"context_forgot,omitempty" doc:"the context was restarted: the state of earlier code is lost"`
	Shown     int      `json:"shown,omitempty" doc:"number of results that follow as separate content blocks"`
	Took      float64  `json:"took_ms,omitempty"`
	CPU       float64  `json:"cpu_ms,omitempty"`
	MaxRSS    int64    `json:"max_rss_bytes,omitempty"`
}

// Facts returns how the code ended, in one line.
func (o ranOut) Facts() string {
	words := []string{"exit code " + strconv.Itoa(o.ExitCode)}
	if o.Outcome != string(sandbox.OK) {
		words = append(words, o.Outcome)
	}
	if o.Signal != 0 {
		words = append(words, "signal "+strconv.Itoa(o.Signal))
	}
	if o.Error != nil {
		words = append(words, "error="+tool.Fact(o.Error.Name+": "+o.Error.Message))
	}
	if o.Forgotten {
		words = append(words, "the context was restarted: the state of earlier code is lost")
	}
	return tool.Facts(append(words, fmt.Sprintf("took %.0f ms", o.Took))...)
}

type failure struct {
	Name      string `json:"name"`
	Message   string `json:"message"`
	Traceback string `json:"traceback,omitempty"`
}

// plainRun returns the members of the original's result.
func plainRun(o ranOut) any {
	return struct {
		ExitCode int    `json:"exit_code"`
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
	}{o.ExitCode, o.Stdout, withReason(o)}
}

// reasons explain outcomes of code that did not exit on its own.
var reasons = map[sandbox.Outcome]string{
	sandbox.Signalled:   "it was killed by a signal",
	sandbox.TimedOut:    "its time was up; use timeout to give it more",
	sandbox.OutOfMemory: "the sandbox ran out of memory; use memory_mib of create_sandbox to give it more",
	sandbox.OutputLimit: "it printed more than the output limit",
	sandbox.Lost:        "the sandbox ended, or the connection to it was lost",
}

// withReason returns the standard error output and, if the code did not exit on its own, a line that says why:
// the original's result has no member for that, and -1 alone does not say whether more time or more memory
// would help.
func withReason(o ranOut) string {
	why, ok := reasons[sandbox.Outcome(o.Outcome)]
	if !ok {
		return o.Stderr
	}
	if o.Outcome == string(sandbox.Signalled) && o.Signal != 0 {
		why += fmt.Sprintf(" (%d)", o.Signal)
	}
	text := o.Stderr
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return fmt.Sprintf("%s[ended after %.0f ms: %s]\n", text, o.Took, why)
}

const outcomes = `
The outcome is one word: ` + "`ok`" + `, ` + "`error`" + ` (another exit code), ` + "`signal`" + `, ` + "`timeout`" + `, ` + "`oom`" + ` (out of memory), ` + "`output-limit`" + ` or ` + "`lost`" + ` (unknown). The output up to that point is returned in any case. All processes that it started end with it; the sandbox continues.

Its output is sent in progress notifications while it runs, and cancelling the call kills it.`

func (m *sandboxTools) codeTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_run", Title: "Run code", Effects: inside, Aliases: []string{"execute_code"},
		Handle: "sandbox_id", Timeout: longest,
		Description: "Runs code in a sandbox, as a program of its own or in a context that keeps state, and " +
			"returns its output, exit code and results.",
		Help: `Without ` + "`sandbox_id`" +
			` the code runs in a new sandbox, taken from the pool if possible, which is destroyed when the call ends.

Code is Python, JavaScript for Node, or Bash. With ` + "`context_id`" + ` it runs with the state of earlier code in that context, and the value of its last expression is a result.

Python and Node code shows results with ` + "`display(value)`" + `: images (PNG, matplotlib figures), JSON (dict, list) or text. Open matplotlib figures are shown at the end.
` + outcomes,
	}, "Execution failed: ", plainRun, m.code)
}

func (m *sandboxTools) commandTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_exec", Title: "Run a command", Effects: inside, Aliases: []string{"run_command"},
		Handle: "sandbox_id", Timeout: longest,
		Description: "Runs a shell command in a sandbox to its end, and returns its output and exit code.",
		Help: "Without `sandbox_id` it runs in a new sandbox, which is destroyed when the call ends.\n\n" +
			"The shell is Bash if it exists, else sh. For a command that continues after the call use " +
			"`sandbox_start`.\n" + outcomes,
	}, "Execution failed: ", plainRun, m.command)
}

func (m *sandboxTools) code(ctx context.Context, c *tool.Call, in codeIn) (ranOut, []tool.Content, error) {
	if err := tooLarge("Code", len(in.Code), mostContent); err != nil {
		return ranOut{}, nil, err
	}
	l, known := interpreter.Languages()[strings.ToLower(in.Language)]
	if !known {
		return ranOut{}, nil, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("Unsupported language: %s", in.Language),
			Next:    "Languages are python, node, bash and sh.",
		}
	}
	return m.runCode(ctx, c, in.ID, in.how, func(b *manager.Box, code interpreter.Code) (interpreter.Result, error) {
		code.Source = in.Code
		if in.Context == "" {
			return b.Code(ctx, l, code)
		}
		if in.ID == "" {
			return interpreter.Result{}, &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: "context_id requires sandbox_id",
				Next:    "Give the sandbox_id of the context as well.",
			}
		}
		k, err := b.Context(in.Context)
		if err != nil {
			return interpreter.Result{}, noContext(err)
		}
		if k.Language != l {
			return interpreter.Result{}, &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: fmt.Sprintf("the language of the context is %s, not %s", k.Language, l),
			}
		}
		return k.Run(ctx, code)
	})
}

func (m *sandboxTools) command(ctx context.Context, c *tool.Call, in commandIn) (ranOut, []tool.Content, error) {
	if err := tooLarge("Command", len(in.Command), mostCommand); err != nil {
		return ranOut{}, nil, err
	}
	return m.runCode(ctx, c, in.ID, in.how, func(b *manager.Box, code interpreter.Code) (interpreter.Result, error) {
		return b.Shell(ctx, in.Command, code)
	})
}

// runCode runs code or a command in a sandbox of the caller.
func (m *sandboxTools) runCode(ctx context.Context, c *tool.Call, id string, h how,
	what func(*manager.Box, interpreter.Code) (interpreter.Result, error)) (ranOut, []tool.Content, error) {
	if err := tooLarge("Stdin", len(h.Stdin), mostContent); err != nil {
		return ranOut{}, nil, err
	}
	b, done, err := m.place(ctx, c, id, h.Template)
	if err != nil {
		return ranOut{}, nil, err
	}
	defer done()
	var all transcript
	tell := delayed.To(c.Peer.Output())
	defer tell.Close()
	code := interpreter.Code{
		Stdin: []byte(h.Stdin), Dir: h.Dir, Env: h.Env, Timeout: time.Duration(h.Timeout * float64(time.Second)),
		Stdout: all.stream(false, tell), Stderr: all.stream(true, tell), Show: all.showPart,
	}
	r, err := what(b, code)
	if err != nil && ctx.Err() != nil {
		return ranOut{}, nil, context.Cause(ctx)
	}
	if err != nil && r.Outcome == "" {
		return ranOut{}, nil, notRun(b, err)
	}
	out := ended(r)
	all.into(&out, r, h.Separate || m.cfg.Original(c.Caller.Context))
	return out, all.parts, nil
}

// place returns a sandbox of the caller, or a new one that done destroys.
func (m *sandboxTools) place(
	ctx context.Context, c *tool.Call, id, template string,
) (b *manager.Box, done func(), err error) {
	switch {
	case id != "" && template != "":
		return nil, nil, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "template cannot be given for an existing sandbox",
			Next:    "Give either template or sandbox_id.",
		}
	case id != "":
		return m.findBox(c, id)
	case m.cfg.Original(c.Caller.Context):
		return nil, nil, &tool.Refusal{Code: missing, Message: "Missing required parameters: sandbox_id"}
	}
	b, err = m.boxes.Create(ctx, c.Caller.Owner,
		manager.Spec{Name: "for one call", Template: template, Administrator: m.cfg.Rules.By(c.Caller),
			Progress: pulled(c.Peer)})
	m.boxes.Serve() // further requests are likely
	if err != nil {
		return nil, nil, notCreated(ctx, err)
	}
	used := b.Use()
	return b, func() {
		used()
		if err := m.boxes.Destroy(c.Caller.Owner, b.ID); err != nil && !errors.Is(err, manager.ErrNotFound) {
			m.log.Warn("a sandbox was not released completely", "error", err)
		}
	}, nil
}

func ended(r interpreter.Result) ranOut {
	o := ranOut{
		ExitCode: r.Code, Outcome: string(r.Outcome), Signal: r.Signal, Forgotten: r.StateLost, MaxRSS: r.MaxRSS,
		Took: milliseconds(r.Took), CPU: milliseconds(r.CPU),
	}
	if r.Outcome != sandbox.OK && r.Outcome != sandbox.Failed && r.Code == 0 {
		o.ExitCode = -1
	}
	if r.Error != nil {
		o.Error = &failure{r.Error.Name, r.Error.Message, r.Error.Traceback}
	}
	return o
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func notRun(b *manager.Box, err error) error {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r
	}
	switch {
	case errors.Is(err, sandbox.ErrClosed), errors.Is(err, sandbox.ErrPaused):
		return gone(err)
	case errors.Is(err, interpreter.ErrBusy):
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: "the context runs other code",
			Next:    "Wait for it, or interrupt it with sandbox_context.",
		}
	case errors.Is(err, fs.ErrNotExist):
		return &tool.Refusal{Code: tool.CodeNotFound, Message: err.Error(), Next: withProgram(b, err.Error())}
	}
	return &tool.Refusal{Code: tool.CodeNotStarted, Message: err.Error()}
}

// namedProgram matches how drivers name a program that a sandbox lacks.
var namedProgram = regexp.MustCompile(`program ([^\s/]+) does not exist`)

// packaged maps the interpreters of the tools to an image that has each and the package of the host.
var packaged = map[string]struct{ image, of string }{
	"python3": {"python:3-slim", "python3"},
	"node":    {"node:lts-slim", "nodejs"},
	"bash":    {"debian:stable-slim", "bash"},
}

// withProgram says how to get a sandbox with the program that this one lacks. A sandbox of an image has only
// the image's programs, and any other sandbox those of the host.
func withProgram(b *manager.Box, text string) string {
	found := namedProgram.FindStringSubmatch(text)
	program := "this program"
	such, install := "", "install it on the host"
	if found != nil {
		program = found[1]
	}
	if p, known := packaged[program]; known {
		such, install = ", such as "+p.image, "install it on the host (apt-get install "+p.of+")"
	}
	other := "make a sandbox with a template or an image that has it (sandbox_create with template or image" + such +
		"; sandbox_stats names the templates)"
	if image := b.Image(); image != "" {
		return fmt.Sprintf("This sandbox has only the programs of the image %s, and %s is not among them: %s.",
			image, program, other)
	}
	return fmt.Sprintf("This sandbox has the programs of the host that are in /usr and /bin, and %s is not among "+
		"them: have an administrator %s, or %s.", program, install, other)
}

// transcript collects the output of code. One goroutine writes to each stream.
type transcript struct {
	mu          sync.Mutex
	both        []byte
	out, err    []byte
	parts       []tool.Content
	partsLength int
}

const mostShown = 8 << 20 // bytes of all parts; further parts are dropped

type streamOf struct {
	t     *transcript
	isErr bool
	tell  interface{ Write([]byte) (int, error) }
}

func (t *transcript) stream(isErr bool, tell interface{ Write([]byte) (int, error) }) *streamOf {
	return &streamOf{t, isErr, tell}
}

func (s *streamOf) Write(b []byte) (int, error) {
	s.tell.Write(b) // accepts all data and never fails
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.both = append(s.t.both, b...)
	if s.isErr {
		s.t.err = append(s.t.err, b...)
	} else {
		s.t.out = append(s.t.out, b...)
	}
	return len(b), nil
}

// showPart adds a part that code shows.
func (t *transcript) showPart(p interpreter.Part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.partsLength += len(p.Data); t.partsLength > mostShown {
		return
	}
	switch {
	case p.MIME == "image/png", p.MIME == "image/jpeg":
		t.parts = append(t.parts, tool.Image(p.MIME, p.Data))
	case p.MIME == "application/json" && json.Valid(p.Data), p.MIME == "text/plain":
		t.parts = append(t.parts, tool.Text(displaytext.Visible(p.Data)))
	default:
		t.parts = append(t.parts, tool.Text("["+displaytext.Visible([]byte(p.MIME))+"]\n"+displaytext.Visible(p.Data)))
	}
}

// into adds the output to a result, with a mark if it was cut.
func (t *transcript) into(o *ranOut, r interpreter.Result, separate bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mark := ""
	if r.Outcome == sandbox.OutputLimit {
		mark = fmt.Sprintf("\n[output cut: the limit of %d bytes was reached]", max(len(t.out), len(t.err)))
	}
	o.Shown = len(t.parts)
	if !separate {
		o.Output = new(displaytext.Visible(t.both) + mark)
		return
	}
	o.Stdout, o.Stderr = displaytext.Visible(t.out), displaytext.Visible(t.err)
	if len(t.err) > len(t.out) {
		o.Stderr += mark
	} else {
		o.Stdout += mark
	}
}
