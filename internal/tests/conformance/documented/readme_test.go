package documented

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"gatehouse/internal/cli/clientconfig"
)

// Where README.md says the program and the folder of a user are.
const (
	installed = "/usr/local/bin/gatehouse"
	projects  = "/home/ann/projects"
)

// written compares the entry of a block with what gatehouse connect writes for each of some clients.
func written(ids ...string) func(context.Context, *session, string) error {
	return func(ctx context.Context, s *session, text string) error {
		for _, id := range ids {
			if err := s.writes(ctx, clientconfig.FindClient(id), text); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
		}
		return nil
	}
}

func (s *session) writes(ctx context.Context, c *clientconfig.Client, text string) error {
	shown, err := c.Servers([]byte(text))
	if err != nil || len(shown) != 1 {
		return fmt.Errorf("the client reads %d servers, %v", len(shown), err)
	}
	made, err := c.Put(nil, shown[0])
	if err != nil {
		return err
	}
	want, err := meaning(string(made))
	if err != nil {
		return err
	}
	if got, err := meaning(text); err != nil || !reflect.DeepEqual(got, want) {
		return fmt.Errorf("the block is %v, %v; the form of the client is %s", got, err, made)
	}
	if c.ID == "claude-desktop" {
		return nil // it has no file on Linux
	}
	out, err := s.command(ctx, `HOME="$HOME/fresh" gatehouse connect `+c.ID+" --dry-run").Output()
	if err != nil {
		return err
	}
	var added strings.Builder
	for line := range strings.Lines(string(out)) {
		if after, ok := strings.CutPrefix(line, "+"); ok && !strings.HasPrefix(line, "+++") {
			added.WriteString(after)
		}
	}
	by, err := c.Servers([]byte(added.String()))
	if err != nil || len(by) != 1 {
		return fmt.Errorf("the command adds %d servers, %v: %s", len(by), err, out)
	}
	by[0].Env = shown[0].Env // the command adds where the runtime folder of the test is
	for i, a := range by[0].Args {
		by[0].Args[i] = strings.Replace(a, "="+s.dir, "="+projects, 1)
	}
	if filepath.Base(by[0].Command) == "gatehouse" {
		by[0].Command = installed
	}
	if !reflect.DeepEqual(by[0], shown[0]) {
		return fmt.Errorf("the block says %+v, the command writes %+v", shown[0], by[0])
	}
	return nil
}

// meaning decodes JSON or TOML.
func meaning(text string) (m map[string]any, err error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return m, json.Unmarshal([]byte(text), &m)
	}
	return m, toml.Unmarshal([]byte(text), &m)
}

// transcript runs the commands after "$ " in a folder with these files, and compares what they print with the lines
// after them. Times, etags, process ids, users and paths of sockets may differ; so may the rest of a line after "...".
func transcript(files map[string]string) func(context.Context, *session, string) error {
	return func(ctx context.Context, s *session, text string) error {
		dir := filepath.Join(s.home, "projects")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(files[name]), 0o644); err != nil {
				return err
			}
		}
		for step := range strings.SplitSeq("\n"+text, "\n$ ") {
			line, want, _ := strings.Cut(step, "\n")
			if strings.TrimSpace(line) == "" {
				continue
			}
			cmd := s.command(ctx, line)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil && !strings.Contains(want, "outside_root") {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
			if err := sameLines(string(out), want); err != nil {
				return fmt.Errorf("%s: %w", line, err)
			}
		}
		out, err := s.command(ctx, "gatehouse connect --remove --yes && gatehouse daemon stop").CombinedOutput()
		if err != nil {
			return fmt.Errorf("undo what was shown: %w: %s", err, out)
		}
		return nil
	}
}

// varying is what differs from one run to the next.
var varying = regexp.MustCompile(`\d{4}-\d\d-\d\d \S+|etag=\w+|process \d+|unix://\S+|\b\d+\.\d\b|root|ann|\s+`)

// sameLines compares lines. A line "..." stands for any lines before the one that follows it.
func sameLines(got, want string) error {
	have := strings.Split(strings.TrimRight(got, "\n"), "\n")
	skipping := false
	for line := range strings.SplitSeq(strings.TrimRight(want, "\n"), "\n") {
		if skipping = skipping || line == "..."; line == "..." {
			continue
		}
		for skipping && len(have) > 1 && !sameLine(have[0], line) {
			have = have[1:]
		}
		skipping = false
		if len(have) == 0 || !sameLine(have[0], line) {
			return fmt.Errorf("there is no line %q in its place: %s", line, got)
		}
		have = have[1:]
	}
	if len(have) > 0 && !skipping {
		return fmt.Errorf("it also printed %q", have)
	}
	return nil
}

func sameLine(got, want string) bool {
	begin, open := strings.CutSuffix(varying.ReplaceAllString(want, "~"), "...")
	got = varying.ReplaceAllString(got, "~")
	return got == begin || open && strings.HasPrefix(got, begin)
}

// Each figure that README.md takes from the measurements is in their document.
func TestFiguresOfTheReadme(t *testing.T) {
	tree := source(t)
	readme, err := os.ReadFile(filepath.Join(tree, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	measured, err := os.ReadFile(filepath.Join(tree, "docs", "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "<!-- measured -->")
	table, _, ended := strings.Cut(rest, "<!-- end of measured -->")
	if !ok || !ended {
		t.Fatal("README.md has no table of figures")
	}
	known := map[string]bool{}
	number := regexp.MustCompile(`\d+(,\d{3})*(\.\d+)?`)
	for _, n := range number.FindAllString(string(measured), -1) {
		known[n] = true
	}
	found := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		for _, cell := range cells[min(2, len(cells)):] {
			for _, n := range number.FindAllString(cell, -1) {
				found++
				if !known[n] {
					t.Errorf("docs/benchmarks.md has no %s: %s", n, line)
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("the table has %d figures", found)
	}
}
