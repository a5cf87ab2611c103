package update

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/tool"
)

type governorIn struct {
	Set string `json:"set,omitempty" doc:"one of those available; left out, nothing is changed" max:"40"`
}

type governorOut struct {
	Current   string   `json:"current"`
	Available []string `json:"available"`
	Differ    bool     `json:"differ,omitempty" doc:"not all processors have the same; current is that of the first"`
}

// governor is about all processors that can be slowed down.
func (m *maker) governor(_ context.Context, c *tool.Call, in governorIn) (governorOut, error) {
	all, err := filepath.Glob(filepath.Join(m.cfg.Processors, "cpu[0-9]*", "cpufreq", "scaling_governor"))
	if err != nil || len(all) == 0 {
		return governorOut{}, &tool.Refusal{Code: "unsupported", Message: "this machine has no governor: its kernel does not choose the speed of the processors", Next: "That is usual in virtual machines, and outside Linux."}
	}
	slices.SortFunc(all, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b) // cpu2 before cpu10
		}
		return strings.Compare(a, b)
	})
	if in.Set != "" {
		if err := m.setGovernor(c, all, in.Set); err != nil {
			return governorOut{}, err
		}
	}
	out := governorOut{Available: available(all[0])}
	for i, path := range all {
		now := word(path)
		if i == 0 {
			out.Current = now
		}
		out.Differ = out.Differ || now != out.Current
	}
	return out, nil
}

func available(governor string) []string {
	return append([]string{}, strings.Fields(word(filepath.Join(filepath.Dir(governor), "scaling_available_governors")))...)
}

// word is what a file of the kernel says.
func word(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 4<<10)) // what cannot be read says nothing
	return strings.TrimSpace(string(b))
}

// setGovernor sets that of all processors, or puts back what was there.
func (m *maker) setGovernor(c *tool.Call, all []string, to string) error {
	if err := m.cfg.Rules.Check(c, "set its governor"); err != nil {
		return err
	}
	for _, path := range all {
		if there := available(path); !slices.Contains(there, to) {
			return &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("there is no governor %q", to), Next: "There are " + strings.Join(there, ", ") + "."}
		}
	}
	var was []string
	for i, path := range all {
		was = append(was, word(path))
		err := os.WriteFile(path, []byte(to), 0)
		if err == nil {
			continue
		}
		for j := range i {
			err = errors.Join(err, os.WriteFile(all[j], []byte(was[j]), 0))
		}
		if errors.Is(err, fs.ErrPermission) {
			return &tool.Refusal{Code: "denied", Message: "the system does not let this host set it", Next: "It takes a host that runs as root."}
		}
		return err
	}
	return nil
}
