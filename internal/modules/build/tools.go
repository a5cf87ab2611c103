package build

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/exec/builds"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	pageSize  = 24 << 10 // bytes of a page of a log
	mostShown = 50       // problems in one answer
)

type runIn struct {
	Dir  string   `json:"dir,omitempty" names:"path" doc:"the project, inside the roots"`
	Tool string   `json:"tool,omitempty" enum:"go,cargo,maven,gradle,npm,pytest,tsc,make" doc:"detected if it is not given"`
	Task string   `json:"task,omitempty" enum:"build,test" default:"build"`
	Args []string `json:"args,omitempty" names:"args" doc:"added to the tool's command line"`
	Wait int      `json:"wait,omitempty" default:"30" min:"0" max:"45" doc:"seconds to wait for the end"`
	Runs string   `json:"-" names:"code"`
}

// buildOut is a build in an answer.
type buildOut struct {
	ID        string           `json:"id"`
	Repo      string           `json:"repo"`
	Branch    string           `json:"branch,omitempty"`
	Status    string           `json:"status" doc:"running, success, failed or cancelled"`
	Duration  float64          `json:"duration" doc:"seconds"`
	StartedAt time.Time        `json:"startedAt"`
	Tool      string           `json:"tool"`
	Command   string           `json:"command"`
	Code      int              `json:"code"`
	Errors    int              `json:"errors"`
	Warnings  int              `json:"warnings"`
	Passed    int              `json:"passed,omitempty" doc:"tests"`
	Failed    int              `json:"failed,omitempty" doc:"tests"`
	Problems  []builds.Problem `json:"problems,omitempty" doc:"errors first"`
	More      int              `json:"more,omitempty" doc:"problems that are left out"`
	module.OnNode
}

func (b *Build) out(problems bool) buildOut {
	o := buildOut{
		ID: b.ID, Repo: b.Repo, Branch: b.Branch, Status: b.Status, Duration: b.duration(), StartedAt: b.Started,
		Tool: b.Tool, Command: strings.Join(b.Command, " "), Code: b.Code, Errors: errorsIn(b.Problems),
	}
	o.Warnings = len(b.Problems) - o.Errors
	n := builds.Count(b.Tests)
	o.Passed, o.Failed = n["passed"], n["failed"]
	if !problems {
		return o
	}
	for _, severity := range []string{"error", "warning"} {
		for _, p := range b.Problems {
			if p.Severity == severity && len(o.Problems) < mostShown {
				o.Problems = append(o.Problems, p)
			}
		}
	}
	o.More = len(b.Problems) - len(o.Problems)
	return o
}

const runHelp = `Runs the project's own tool: go, cargo, maven, gradle, npm, pytest, tsc or make, as its files say. It runs
without a shell, with a minimal environment, and with the rights of this host: what a build does is up to the project.

- If the build has not ended after wait seconds, the answer has status running; build_status follows it by its id. A
  build ends with the host, and after two hours.
- problems are the errors and warnings in the output, with file, line, column and the line itself. build_logs reads the
  output, and build_tests lists the tests, failed ones first.
- The start and the end are events (module.build.start, complete and failed), messages on the channels ide:build.start,
  ide:build.complete and ide:build.failed of the hub, and running builds are below /public/builds.`

func (m *runner) runTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "build_run", Title: "Build or test a project", Effects: tool.Writes | tool.Destroys | tool.OpenWorld,
		Description: "Builds or tests a project with its own tool, and returns the errors with file, line and column.",
		Help:        runHelp,
	}, func(ctx context.Context, c *tool.Call, in runIn) (buildOut, error) {
		where, err := roots.OpenWorkplace(c.Roots, in.Dir, "dir")
		if err != nil {
			return buildOut{}, err
		}
		defer where.Close()
		b, argv, err := plan(where, in)
		if err != nil {
			return buildOut{}, err
		}
		r, err := m.start(c, where, b, argv)
		if err != nil {
			return buildOut{}, err
		}
		wait := time.NewTimer(time.Duration(in.Wait) * time.Second)
		defer wait.Stop()
		select {
		case <-r.done:
		case <-wait.C:
		case <-ctx.Done():
			return buildOut{}, context.Cause(ctx) // the build goes on, and build_list has it
		}
		m.mu.Lock()
		b = r.Build
		m.mu.Unlock()
		return b.out(true), nil
	})
}

// plan returns the build that a call asks for, and its command line.
func plan(where roots.Workplace, in runIn) (b Build, argv []string, err error) {
	found := builds.Detect(os.DirFS(where.Dir))
	var names []string
	for _, t := range found {
		names = append(names, t.Name)
		command := t.Build
		if in.Task == "test" {
			command = t.Test
		}
		if command != nil && argv == nil && (in.Tool == "" || in.Tool == t.Name) {
			argv, b.Tool = command, t.Name
		}
	}
	if argv == nil {
		return b, nil, &tool.Refusal{
			Code: tool.CodeUnsupported,
			Message: fmt.Sprintf("no tool that can %s was found in %s (found: %s)", in.Task, where.Path,
				cmp.Or(strings.Join(names, ", "), "none")),
			Next: "Give dir: the folder with go.mod, Cargo.toml, pom.xml, build.gradle, package.json, " +
				"tsconfig.json, Makefile " +
				"or Python tests.",
		}
	}
	b.Dir, b.Repo = where.Path, filepath.Base(where.Path)
	b.Branch = builds.Branch(where.Path)
	return b, append(argv[:len(argv):len(argv)], in.Args...), nil
}

type idIn struct {
	ID string `json:"id" min:"1" max:"200"`
}

func (m *runner) statusTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "build_status", Title: "Show a build", Effects: tool.Reads, Handle: "id",
		Description: "Returns the state of a build with its errors and warnings, as far as it is known.",
	}, func(ctx context.Context, c *tool.Call, in idIn) (buildOut, error) {
		b, _, err := m.findBuild(ctx, c.Caller.Owner, in.ID, false)
		return b.out(true), err
	})
}

type listIn struct {
	Repo   string `json:"repo,omitempty" max:"500" doc:"the name of a folder"`
	Limit  int    `json:"limit,omitempty" default:"20" min:"1" max:"100"`
	Cursor string `json:"cursor,omitempty"`
}

type listOut struct {
	Builds     []buildOut `json:"builds"`
	NextCursor string     `json:"next_cursor,omitempty"`
	module.Unreached
}

func (m *runner) listTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "build_list", Title: "List builds", Effects: tool.Reads,
		Description: "Lists your builds, the newest first.",
	}, func(ctx context.Context, c *tool.Call, in listIn) (out listOut, err error) {
		before, err := parseCursor(in.Cursor, math.MaxInt64)
		if err != nil {
			return out, err
		}
		all, err := m.listBuilds(ctx, c.Caller.Owner, in.Repo, before, in.Limit+1)
		if err != nil {
			return out, err
		}
		more := len(all) > in.Limit
		for i := range all[:min(in.Limit, len(all))] {
			out.Builds = append(out.Builds, all[i].out(false))
			out.Builds[i].Node = m.deps.Node
		}
		out.Unreached.Unreached = module.Gather(ctx, m.deps, c, func(_ string, there listOut) {
			out.Builds, more = append(out.Builds, there.Builds...), more || there.NextCursor != ""
		})
		slices.SortStableFunc(out.Builds, func(a, b buildOut) int { return b.StartedAt.Compare(a.StartedAt) })
		if len(out.Builds) > in.Limit {
			out.Builds, more = out.Builds[:in.Limit], true
		}
		if more {
			out.NextCursor = strconv.FormatInt(out.Builds[len(out.Builds)-1].StartedAt.UnixNano(), 36)
		}
		return out, nil
	})
}

func parseCursor(s string, none int64) (int64, error) {
	if s == "" {
		return none, nil
	}
	n, err := strconv.ParseInt(s, 36, 64)
	if err != nil || n < 0 {
		return 0, tool.Refuse(tool.CodeInvalidArguments, "cursor is %q; expected next_cursor of the previous page", s)
	}
	return n, nil
}

type logsIn struct {
	ID     string `json:"id" min:"1" max:"200"`
	Tail   int    `json:"tail,omitempty" min:"0" max:"2000" doc:"only this many lines at the end"`
	Grep   string `json:"grep,omitempty" max:"500" doc:"only lines that contain this"`
	Cursor string `json:"cursor,omitempty"`
}

type logsOut struct {
	Text       string `json:"text" text:"product"`
	Status     string `json:"status"`
	Lines      int    `json:"lines" doc:"of the whole output"`
	NextCursor string `json:"next_cursor,omitempty"`
}

func (m *runner) logsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "build_logs", Title: "Read the output of a build", Effects: tool.Reads, Budget: -1, Handle: "id",
		Description: "Returns the output of a build by lines, a page at a time, or its end, " +
			"or the lines that contain a text.",
	}, func(ctx context.Context, c *tool.Call, in logsIn) (out logsOut, err error) {
		b, log, err := m.findBuild(ctx, c.Caller.Owner, in.ID, true)
		if err != nil {
			return out, err
		}
		from, err := parseCursor(in.Cursor, 0)
		if err != nil {
			return out, err
		}
		var lines []string
		for line := range strings.Lines(log) {
			if strings.Contains(line, in.Grep) {
				lines = append(lines, strings.TrimRight(line, "\r\n"))
			}
		}
		out.Status, out.Lines = b.Status, strings.Count(log, "\n")
		if in.Tail > 0 && in.Cursor == "" {
			from = int64(max(0, len(lines)-in.Tail))
		}
		var text strings.Builder
		n := int(min(from, int64(len(lines))))
		for ; n < len(lines) && (text.Len() == 0 || text.Len()+len(lines[n]) < pageSize); n++ {
			text.WriteString(clipLog(lines[n]) + "\n")
		}
		if n < len(lines) || b.Status == "running" {
			out.NextCursor = strconv.FormatInt(int64(n), 36)
		}
		out.Text = text.String()
		return out, nil
	})
}

func clipLog(s string) string {
	const most = 4000
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

type testsOut struct {
	Text    string    `json:"text" text:"product"`
	Passed  int       `json:"passed"`
	Failed  int       `json:"failed"`
	Skipped int       `json:"skipped"`
	Tests   []testOut `json:"tests" text:"facts" doc:"groups before their tests"`
}

type testOut struct {
	Name   string `json:"name"`
	Status string `json:"status" doc:"passed, failed or skipped"`
	Depth  int    `json:"depth" doc:"groups around it"`
}

// flatten returns a tree of tests as a list.
func flatten(all []*builds.Test, depth int) (out []testOut) {
	for _, t := range all {
		out = append(append(out, testOut{t.Name, t.Status, depth}), flatten(t.Tests, depth+1)...)
	}
	return out
}

// Facts implements tool.Facter.
func (o testsOut) Facts() string {
	return tool.Facts(fmt.Sprintf("failed: %d", o.Failed), fmt.Sprintf("passed: %d", o.Passed),
		fmt.Sprintf("skipped: %d", o.Skipped))
}

func (m *runner) testsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "build_tests", Title: "List the tests of a build", Effects: tool.Reads, Handle: "id",
		Description: "Lists the tests of a build as a tree, those that failed first.",
	}, func(ctx context.Context, c *tool.Call, in idIn) (out testsOut, err error) {
		b, log, err := m.findBuild(ctx, c.Caller.Owner, in.ID, true)
		if err != nil {
			return out, err
		}
		if b.Status == "running" {
			b.Tests = builds.ParseTests(log)
		}
		n := builds.Count(b.Tests)
		out.Passed, out.Failed, out.Skipped, out.Tests = n["passed"], n["failed"], n["skipped"], flatten(b.Tests, 0)
		var text strings.Builder
		writeTests(&text, b.Tests, 0)
		if out.Text = text.String(); out.Text == "" {
			out.Text = "The output names no tests.\n"
		}
		return out, nil
	})
}

// writeTests writes a tree of tests, as much as fits on a page. The tests of a group that passed are counted alone.
func writeTests(text *strings.Builder, all []*builds.Test, depth int) {
	for _, t := range all {
		if text.Len() > pageSize {
			return
		}
		fmt.Fprintf(text, "%s%s %s", strings.Repeat("  ", depth), t.Status, clip(t.Name))
		if len(t.Tests) > 0 && t.Status != "failed" {
			fmt.Fprintf(text, " (%d tests)", builds.Count(t.Tests)[t.Status])
		}
		text.WriteString("\n")
		if t.Status == "failed" {
			writeTests(text, t.Tests, depth+1)
		}
	}
}

func (m *runner) stopTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "build_stop", Title: "Stop a build", Effects: tool.Writes | tool.Destroys | tool.Idempotent,
		Handle:      "id",
		Description: "Stops a running build and everything that it started.",
	}, func(ctx context.Context, c *tool.Call, in idIn) (buildOut, error) {
		m.mu.Lock()
		r := m.active[in.ID]
		m.mu.Unlock()
		if r != nil && r.Owner == c.Caller.Owner {
			if err := r.child.Stop(ctx); err != nil {
				return buildOut{}, err
			}
			<-r.done
		}
		b, _, err := m.findBuild(ctx, c.Caller.Owner, in.ID, false)
		return b.out(true), err
	})
}
