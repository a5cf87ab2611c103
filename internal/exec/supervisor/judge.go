//go:build linux && (amd64 || arm64)

package supervisor

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/exec/shellpolicy"

	"golang.org/x/sys/unix"
)

const (
	maxAncestors = 64
	shownArgs    = 32  // arguments of a program in a report
	shownBytes   = 200 // of one of them
)

// caller is the process that starts a program.
type caller struct {
	name    string // of its own program
	entries []int  // of the allow list that let it or a process above it run
	scope   string
}

// loaded is a program that is to be judged.
type loaded struct {
	pid    int
	file   *file
	script *file  // for which the file was loaded; nil if it was not
	called string // how the script was named, which is one of the arguments
	args   []string
	cut    bool
}

// refuseEarly judges a program by what its caller names, before the kernel has loaded it. A refusal is final and
// becomes an error of the call, which the caller can report. Anything else says nothing, because the caller may still
// name another file.
func (s *supervisor) refuseEarly(n *notification, parent caller) *Program {
	tid, dir, name, args := int(n.PID), unix.AT_FDCWD, n.Args[0], n.Args[1]
	if n.Call == unix.SYS_EXECVEAT {
		dir, name, args = int(int32(n.Args[0])), n.Args[1], n.Args[2]
		if n.Args[4]&onlyEmpty != 0 {
			return &Program{PID: tid, Parent: parent.name, Refused: "a program is started by an open file without a " +
				"name (AT_EMPTY_PATH)"}
		}
	}
	if s.rules.Empty() {
		return nil
	}
	text, err := readText(tid, name, unix.PathMax)
	if err != nil || text == "" {
		return nil
	}
	p := loaded{pid: tid, file: s.named(tid, dir, text)}
	if p.file == nil {
		return nil
	}
	if p.args, p.cut, err = readArguments(tid, args); err != nil {
		return nil
	}
	if program, arg := p.file.interpreter(); program != "" {
		rest := p.args[min(1, len(p.args)):]
		p.args = []string{program}
		if arg != "" {
			p.args = append(p.args, arg)
		}
		p.args = append(append(p.args, text), rest...)
		p.script, p.called = p.file, text
		if p.file = s.named(tid, unix.AT_FDCWD, program); p.file == nil {
			return nil
		}
	}
	why, pattern, _ := s.decide(&p, parent)
	if why == "" {
		return nil
	}
	return p.reportProgram(parent, why, pattern)
}

// judge decides about the program that a process has loaded, and reports it.
func (s *supervisor) judge(pid int, parent caller) bool {
	p, err := s.look(pid)
	var why, pattern string
	var entries []int
	if err != nil {
		why = "the process cannot be looked at: " + err.Error()
	} else {
		why, pattern, entries = s.decide(p, parent)
	}
	program := p.reportProgram(parent, why, pattern)
	if s.follows() {
		name, scope := p.title(), parent.scope
		if s.plan.Learn && err == nil {
			name = s.nameOf(p)
			program.Name, program.Scope = name, scope
		}
		if scope == "" {
			scope = name
		}
		s.processes[pid] = process{procid.Of(pid), append(entries, parent.entries...), scope}
	}
	s.sendMessage(message{Program: program})
	return why == ""
}

// follows reports whether it matters which program started which.
func (s *supervisor) follows() bool { return s.plan.Learn || s.rules.Listed() }

// look finds out what a process has loaded.
func (s *supervisor) look(pid int) (*loaded, error) {
	p := &loaded{pid: pid}
	exe := fmt.Sprintf("/proc/%d/exe", pid)
	fd, err := unix.Open(exe, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, err
	}
	defer unix.Close(fd)
	name, err := os.Readlink(exe)
	if err != nil {
		return p, err
	}
	p.file = s.fileOf(fd, name)
	if p.args, p.cut, err = commandLine(pid, s.buf); err != nil {
		return p, err
	}
	started, err := startedAs(pid, s.buf)
	if err != nil {
		return p, err
	}
	if f := s.named(pid, unix.AT_FDCWD, started); f == nil || f.id != p.file.id {
		// What has no name any more was removed or replaced meanwhile.
		if p.script, p.called = f, started; f == nil {
			p.script = &file{path: started, problem: "its script was removed or replaced"}
		}
	}
	return p, nil
}

// nameOf returns what an allow pattern calls a program: the name by which it was started if a folder of programs has
// that, and otherwise its path.
func (s *supervisor) nameOf(p *loaded) string {
	f, called := p.file, p.args[0]
	if p.script != nil {
		f, called = p.script, p.called
	}
	for _, name := range []string{path.Base(called), path.Base(f.path)} {
		for _, dir := range s.plan.Folders {
			var st unix.Stat_t
			if unix.Stat(path.Join(dir, name), &st) == nil && identityOf(&st) == f.id {
				return name
			}
		}
	}
	return f.path
}

// title returns the name of a program, or of the script that it runs.
func (p *loaded) title() string {
	if p.script != nil {
		return path.Base(p.script.path)
	}
	if p.file == nil {
		return ""
	}
	return path.Base(p.file.path)
}

func (p *loaded) reportProgram(parent caller, why, pattern string) *Program {
	r := &Program{PID: p.pid, Parent: parent.name, Refused: why, Pattern: pattern}
	if p.file != nil {
		r.Path, r.Privileged = p.file.path, p.file.privileged
	}
	if p.script != nil {
		r.Script = p.script.path
	}
	for _, a := range p.args[:min(len(p.args), shownArgs)] {
		if len(a) > shownBytes {
			a = strings.ToValidUTF8(a[:shownBytes], "") + "…"
		}
		r.Args = append(r.Args, a)
	}
	return r
}

// decide holds a program against the lists. why is "" if it may run; entries are those of the allow list that let it.
func (s *supervisor) decide(p *loaded, parent caller) (why, pattern string, entries []int) {
	if p.file.problem != "" {
		return p.file.problem, "", nil
	}
	if p.script != nil && p.script.problem != "" {
		return p.script.problem, "", nil
	}
	images := []shellpolicy.Image{imageOf(p.file, p.args, p.cut)}
	if p.file.loader {
		target, args, why := s.loaderTarget(p)
		if why != "" {
			return why, "", nil
		}
		if target != nil {
			images = append(images, imageOf(target, args, p.cut))
		}
	}
	judged := images
	for _, f := range s.scripts(p) {
		judged = append(judged, imageOf(f, p.args, true))
	}
	for i := range judged {
		if pattern, denied := s.rules.Denying(&judged[i]); denied {
			return fmt.Sprintf("the pattern %q denies it", pattern), pattern, nil
		}
	}
	if why := s.standalone(p); why != "" {
		return why, "", nil
	}
	if !s.rules.Listed() {
		return "", "", nil
	}
	return s.listed(p, images[len(images)-1], parent)
}

// listed holds a program against the allow list. A script needs an entry, and so does what runs it.
func (s *supervisor) listed(p *loaded, m shellpolicy.Image, parent caller) (why, pattern string, entries []int) {
	if p.script != nil {
		script := imageOf(p.script, p.args, true)
		if i := slices.Index(p.args, p.called); i > 0 {
			script.Args, script.Cut = p.args[i+1:], p.cut
		}
		entries = s.rules.Allowing(&script)
		if len(entries) == 0 && !s.allowedWith(parent.entries, &script) {
			return "no pattern of the allow list fits the script " + p.script.path, "", nil
		}
	}
	own := s.rules.Allowing(&m)
	above := append(slices.Clone(entries), parent.entries...)
	if len(own) == 0 && !s.allowedWith(above, &m) {
		return "no pattern of the allow list fits it", "", nil
	}
	return "", "", append(entries, own...)
}

func (s *supervisor) allowedWith(entries []int, m *shellpolicy.Image) bool {
	return slices.ContainsFunc(entries, func(e int) bool { return s.rules.AllowedWith(e, m) })
}

// imageOf returns what the lists judge of a file.
func imageOf(f *file, args []string, cut bool) shellpolicy.Image {
	m := shellpolicy.Image{Paths: f.paths, Copies: f.copies, Names: f.names, Cut: cut}
	if len(args) > 0 {
		m.Args = args[1:]
	}
	if f.multi == "" || len(args) == 0 {
		return m
	}
	name, rest := applet(f.multi, args)
	m.Paths, m.Names = []string{f.path}, nil
	if name != f.multi {
		m.Copies, m.Args = []string{path.Join(path.Dir(f.path), name)}, rest
	}
	if len(f.names) > 0 {
		m.Names = []string{name}
		m.Paths = append(m.Paths, path.Join(path.Dir(f.path), name))
	}
	return m
}

// applet returns which program of a multi-call program runs, and its arguments.
func applet(multi string, args []string) (name string, rest []string) {
	for len(args) > 0 {
		name = strings.TrimPrefix(path.Base(args[0]), "-")
		if p, ok := strings.CutPrefix(args[0], "--coreutils-prog="); ok {
			return p, args[1:]
		}
		args = args[1:]
		if !strings.HasPrefix(name, multi) {
			return name, args
		}
	}
	return multi, nil
}

// standalone refuses what may run another program of the same file without the kernel. With a deny list, such a
// program is not to be told from one that is denied.
func (s *supervisor) standalone(p *loaded) string {
	if p.file.multi == "" || p.file.multi == "coreutils" || len(s.plan.Deny) == 0 || len(p.args) == 0 {
		return ""
	}
	if name, _ := applet(p.file.multi, p.args); shellpolicy.RunsOthers(name) {
		return fmt.Sprintf("%s of %s may run other programs of %[2]s without starting them, so a deny list cannot "+
			"judge them", name, p.file.multi)
	}
	return ""
}

// scripts returns the scripts that a program runs: the one for which it was loaded, and, if it is an interpreter, those
// among its first arguments.
func (s *supervisor) scripts(p *loaded) (all []*file) {
	if p.script != nil {
		all = append(all, p.script)
	}
	if len(s.plan.Deny) == 0 || !slices.ContainsFunc(p.file.paths, func(f string) bool {
		return shellpolicy.IsInterpreter(path.Base(f))
	}) {
		return all
	}
	for _, a := range p.args[min(1, len(p.args)):min(16, len(p.args))] {
		if a == "" || len(a) >= unix.PathMax {
			continue
		}
		if f := s.named(p.pid, unix.AT_FDCWD, a); f != nil && f.problem == "" {
			if program, _ := f.interpreter(); program != "" {
				all = append(all, f)
			}
		}
	}
	return all
}

// loaderOptions are the options of loaders; true if a value follows.
var loaderOptions = map[string]bool{
	"--library-path": true, "--inhibit-rpath": true, "--audit": true, "--preload": true, "--argv0": true,
	"--glibc-hwcaps-prepend": true, "--glibc-hwcaps-mask": true, "--inhibit-cache": false, "--": false,
}

// loaderTarget returns the program that a loader is told to load, nil for none. It opens the file itself, later, so
// the file must be one that the line cannot replace.
func (s *supervisor) loaderTarget(p *loaded) (f *file, args []string, why string) {
	args = p.args[min(1, len(p.args)):]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		option, _, _ := strings.Cut(args[0], "=")
		switch value, known := loaderOptions[option]; {
		case option == "--list" || option == "--verify" || option == "--help" || option == "--version":
			return nil, nil, ""
		case !known:
			return nil, nil, "it is a loader of programs with the unknown option " + strconv.Quote(option)
		case value && option == args[0]:
			args = args[min(2, len(args)):]
		default:
			args = args[1:]
		}
	}
	if len(args) == 0 {
		return nil, nil, ""
	}
	const unsure = "it is a loader of programs, and the line could replace the file that it is told to load"
	if !path.IsAbs(args[0]) || s.plan.Unconfined || !slices.Contains(s.plan.Folders, resolve(path.Dir(args[0]))) {
		return nil, nil, unsure
	}
	if f = s.named(p.pid, unix.AT_FDCWD, args[0]); f == nil || !slices.Contains(s.plan.Folders, path.Dir(f.path)) {
		return nil, nil, unsure
	}
	return f, args, f.problem
}

// parentOf returns what is known of the process that starts a program.
func (s *supervisor) parentOf(tid int) caller {
	exe := fmt.Sprintf("/proc/%d/exe", tid)
	name, _ := os.Readlink(exe)
	c := caller{name: path.Base(name)}
	if !s.follows() {
		return c
	}
	pid := leaderOf(tid)
	for range maxAncestors {
		if p, ok := s.processes[pid]; ok && p.born == procid.Of(pid) {
			c.entries, c.scope = p.entries, p.scope
			return c
		}
		if pid == s.first {
			return c
		}
		stat, err := procid.ReadStat(pid)
		if err != nil {
			break
		}
		if pid, err = strconv.Atoi(stat.Field(4)); err != nil || pid == os.Getpid() {
			break
		}
	}
	// A process above it has ended. What is known is the program that it still runs.
	if fd, err := unix.Open(exe, unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		defer unix.Close(fd)
		if f := s.fileOf(fd, name); f.problem == "" {
			m := imageOf(f, nil, true)
			c.entries, c.scope = s.rules.Allowing(&m), path.Base(f.path)
		}
	}
	return c
}
