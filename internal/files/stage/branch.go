package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	none  string        // the name of no object, which is as long as all names of the repository
	lines *bytes.Buffer // what was put into the index
}

// put changes the index.
func (g repository) put(line string) error {
	g.lines.WriteString(line)
	_, err := g.run([]byte(line), "update-index", "-z", "--index-info")
	return err
}

func (g repository) run(stdin []byte, args ...string) (string, error) {
	// The repository's own settings may name programs; none of these commands runs one.
	cmd := exec.CommandContext(g.ctx, "git", append([]string{"-C", g.dir, "-c", "core.hooksPath=/dev/null",
		"-c", "core.fsmonitor=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0")
	if g.index != "" {
		cmd.Env = append(cmd.Env, "GIT_INDEX_FILE="+g.index)
	}
	cmd.Stdin = bytes.NewReader(stdin)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(failed.String()))
	}
	return strings.TrimSpace(out.String()), nil
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
	g := repository{ctx: ctx, dir: t.Layers[i].Lower, index: filepath.Join(temp, "index"), lines: &bytes.Buffer{}}
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
	for _, c := range all {
		switch done, err := t.addToIndex(g, i, c); {
		case err != nil:
			return r, fmt.Errorf("%s: %w", c.Path, err)
		case done:
			r.Done = append(r.Done, c.Path)
		}
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
	_, err = g.run(g.lines.Bytes(), "update-index", "-z", "--index-info")
	return r, err
}

// addToIndex puts a change in the index. It reports false for what git does not store.
func (t *Task) addToIndex(g repository, layer int, c Change) (bool, error) {
	if c.Layer != layer || slices.Contains(strings.Split(c.name, "/"), ".git") ||
		c.Now.Type == Folder && c.Was.Type != File && c.Was.Type != Link {
		return false, nil
	}
	if c.Now.Type != File && c.Now.Type != Link {
		err := g.put("0 " + g.none + "\t" + c.name + "\x00")
		return err == nil && (c.Was.Type == File || c.Was.Type == Link), err
	}
	if c.Was.Type == None {
		if _, err := g.run(nil, "check-ignore", "-q", "--", c.name); err == nil {
			return false, nil // ignored
		}
	}
	content, mode := []byte(c.Now.Target), "120000"
	if c.Now.Type == File {
		mode = "100644"
		if c.Now.Mode&0o111 != 0 {
			mode = "100755"
		}
		root, err := os.OpenRoot(t.upper(layer))
		if err != nil {
			return false, err
		}
		defer root.Close()
		if content, err = root.ReadFile(c.name); err != nil {
			return false, err
		}
	}
	object, err := g.run(content, "hash-object", "-w", "--no-filters", "--stdin")
	if err != nil {
		return false, err
	}
	return true, g.put(mode + " " + object + "\t" + c.name + "\x00")
}
