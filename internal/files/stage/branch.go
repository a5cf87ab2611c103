package stage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// AcceptBranch commits changes of a task to a new branch of the git repository that a folder of the
// task is. The folder, its index and its present branch stay as they are, and the task stays open.
func (m *Manager) AcceptBranch(ctx context.Context, id, branch string, c Choice) (r Result, err error) {
	err = m.locked(id, func(t *Task, _ bool) error {
		if err := t.review(); err != nil {
			return err
		}
		of, err := t.changes(0)
		if err != nil {
			return err
		}
		if c.ETag != "" && c.ETag != of.ETag {
			return errShown
		}
		w := t.wanted(c)
		all := slices.DeleteFunc(of.First, func(c Change) bool { return !w.takes(&c) })
		if err := w.missing(); err != nil {
			return err
		}
		r, err = t.commit(ctx, all, branch, c.By)
		return err
	})
	return r, err
}

// AcceptCommit accepts changes of a task, and commits what was accepted, and nothing else, to the present branch of the
// git repository that a folder of the task is. What else differs from the branch, and what is in the index, stays.
func (m *Manager) AcceptCommit(ctx context.Context, id string, c Choice) (r Result, err error) {
	t, err := m.load(id)
	if err != nil {
		return r, err
	}
	if _, err := t.repository(); err != nil {
		return r, err
	}
	c.then = func(t *Task, chosen []Change, r *Result) error {
		accepted := map[string]bool{}
		for _, path := range r.Done {
			accepted[path] = true
		}
		done := slices.DeleteFunc(slices.Clone(chosen), func(c Change) bool { return !accepted[c.Path] })
		if len(done) == 0 {
			return nil
		}
		committed, err := t.commit(ctx, done, "", c.By)
		if err != nil {
			return fmt.Errorf("the changes were accepted, and not committed: %w", err)
		}
		r.Note = committed.Note
		return nil
	}
	return m.Accept(id, c)
}

// repository runs git commands that change objects and one reference alone, with an index of their own.
type repository struct {
	ctx   context.Context // of the one command that commits
	dir   string
	index string
	none  string // the name of no object, which is as long as all names of the repository
}

func (g repository) run(stdin []byte, args ...string) (string, error) {
	out, err := g.output(bytes.NewReader(stdin), args...)
	return strings.TrimSpace(string(out)), err
}

func (g repository) output(stdin io.Reader, args ...string) ([]byte, error) {
	// The repository's own settings may name programs; none of these commands runs one.
	cmd := exec.CommandContext(g.ctx, "git", append([]string{"-C", g.dir, "-c", "core.hooksPath=/dev/null",
		"-c", "core.fsmonitor=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
	if g.index != "" {
		cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+g.index)
	}
	cmd.Stdin = stdin
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(failed.String()))
	}
	return out.Bytes(), nil
}

// repository returns which folder of the task is the top of a git repository.
func (t *Task) repository() (layer int, err error) {
	i := slices.IndexFunc(t.Layers, func(l Layer) bool {
		_, err := os.Stat(filepath.Join(l.Lower, ".git"))
		return err == nil
	})
	if i < 0 {
		return 0, errors.New("no folder of the task is the top of a git repository")
	}
	return i, nil
}

// commit commits changes to a new branch or, if its name is "", to the present one, of which it changes the index too.
func (t *Task) commit(ctx context.Context, all []Change, branch, by string) (r Result, err error) {
	i, err := t.repository()
	if err != nil {
		return r, err
	}
	temp, err := os.MkdirTemp(t.dir, "index-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(temp)
	g := repository{ctx: ctx, dir: t.Layers[i].Lower, index: filepath.Join(temp, "index")}
	head, err := g.run(nil, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return r, err
	}
	g.none = strings.Repeat("0", len(head))
	if _, err := g.run(nil, "read-tree", head); err != nil {
		return r, err
	}
	r = Result{At: time.Now(), By: by, Note: "committed to the branch " + branch + "; the folders are unchanged"}
	if branch == "" {
		r.Note = "committed to the present branch"
	}
	lines, err := t.addToIndex(g, i, all, &r)
	if err != nil {
		return r, err
	}
	tree, err := g.run(nil, "write-tree")
	if err != nil {
		return r, err
	}
	commit, err := g.run(fmt.Appendf(nil, "Changes of task %s\n", t.ID), "-c", "user.name="+by,
		"-c", "user.email="+by+"@localhost", "commit-tree", tree, "-p", head)
	if err != nil {
		return r, err
	}
	if branch != "" {
		_, err = g.run(nil, "update-ref", "refs/heads/"+branch, commit, g.none)
		return r, err
	}
	if _, err := g.run(nil, "update-ref", "-m", "gatehouse: task "+t.ID, "HEAD", commit, head); err != nil {
		return r, err
	}
	g.index = "" // the repository's own
	_, err = g.run(lines, "update-index", "-z", "--index-info")
	return r, err
}

// addToIndex puts changes in the index, without those that git does not store, and returns the lines that do so.
func (t *Task) addToIndex(g repository, layer int, all []Change, r *Result) (lines []byte, err error) {
	all = slices.DeleteFunc(slices.Clone(all), func(c Change) bool {
		return c.Layer != layer || slices.Contains(strings.Split(c.name, "/"), ".git") ||
			c.Now.Type == Folder && c.Was.Type != File && c.Was.Type != Link
	})
	ignored, err := g.ignored(all)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(c Change) bool { return ignored[c.name] })
	objects, err := t.store(g, layer, all)
	if err != nil {
		return nil, err
	}
	for i, c := range all {
		entry := "0 " + g.none
		if objects[i] != "" {
			entry = gitMode(c.Now) + " " + objects[i]
		}
		lines = append(lines, entry+"\t"+c.name+"\x00"...)
		if objects[i] != "" || c.Was.Type == File || c.Was.Type == Link {
			r.Done = append(r.Done, c.Path)
		}
	}
	_, err = g.run(lines, "update-index", "-z", "--index-info")
	return lines, err
}

// ignored returns the names of new files that the repository ignores.
func (g repository) ignored(all []Change) (names map[string]bool, err error) {
	var ask []byte
	for _, c := range all {
		if c.Was.Type == None {
			ask = append(ask, c.name+"\x00"...)
		}
	}
	names = map[string]bool{}
	if len(ask) == 0 {
		return names, nil
	}
	out, err := g.output(bytes.NewReader(ask), "check-ignore", "-z", "--stdin")
	if err == nil {
		for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			names[name] = true
		}
		return names, nil
	}
	const none = 1
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == none {
		return names, nil
	}
	for _, c := range all { // git examines no name if it refuses one, such as one below a link
		if err := g.ctx.Err(); err != nil {
			return nil, err
		}
		if c.Was.Type == None {
			_, err := g.run(nil, "check-ignore", "-q", "--", c.name)
			names[c.name] = err == nil
		}
	}
	return names, nil
}

// store stores the content of changes as objects, and returns the names of these; "" for what has no content.
func (t *Task) store(g repository, layer int, all []Change) (objects []string, err error) {
	objects = make([]string, len(all))
	root, err := os.OpenRoot(t.upper(layer))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	in, out := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeBlobs(out, root, all)
		out.CloseWithError(err)
		written <- err
	}()
	said, err := g.output(in, "fast-import", "--quiet", "--done")
	in.Close() // git may have ended before all was written
	if werr := <-written; werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		return nil, werr
	}
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(said))
	for i, c := range all {
		if !hasContent(c.Now) {
			continue
		}
		if len(names) == 0 {
			return nil, errors.New("git stored fewer objects than it was given")
		}
		objects[i], names = names[0], names[1:]
	}
	return objects, nil
}

// writeBlobs writes the content of changes as git fast-import reads it, and has it print the name of each object.
func writeBlobs(to io.Writer, root *os.Root, all []Change) error {
	w := bufio.NewWriter(to)
	mark := 0
	for _, c := range all {
		if !hasContent(c.Now) {
			continue
		}
		mark++
		fmt.Fprintf(w, "blob\nmark :%d\n", mark)
		if err := writeContent(w, root, c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
		fmt.Fprintf(w, "\nget-mark :%d\n", mark)
	}
	fmt.Fprintln(w, "done")
	return w.Flush()
}

func writeContent(w io.Writer, root *os.Root, c Change) error {
	if c.Now.Type == Link {
		_, err := fmt.Fprintf(w, "data %d\n%s", len(c.Now.Target), c.Now.Target)
		return err
	}
	f, err := root.Open(c.name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "data %d\n", info.Size()); err != nil {
		return err
	}
	n, err := io.Copy(w, io.LimitReader(f, info.Size()))
	if err == nil && n < info.Size() {
		err = errors.New("it became shorter while it was read")
	}
	return err
}

func hasContent(s State) bool { return s.Type == File || s.Type == Link }

// gitMode returns the mode of a file or link in an index.
func gitMode(s State) string {
	switch {
	case s.Type == Link:
		return "120000"
	case s.Mode&0o111 != 0:
		return "100755"
	}
	return "100644"
}
