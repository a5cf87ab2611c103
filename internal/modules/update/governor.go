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
	Set string `json:"set,omitempty" doc:"one of the available ones; default: no change" max:"40"`
}

type governorOut struct {
	Current   string   `json:"current"`
	Available []string `json:"available"`
	Differ    bool     `json:"differ,omitempty" doc:"the processors have different governors; current is that of the first"`
}

// governor returns or sets the governor of all processors that have one.
func (m *updates) governor(_ context.Context, c *tool.Call, in governorIn) (governorOut, error) {
	all, err := filepath.Glob(filepath.Join(m.cfg.Processors, "cpu[0-9]*", "cpufreq", "scaling_governor"))
	if err != nil || len(all) == 0 {
		return governorOut{}, &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: "this machine has no governor: its kernel does not control the speed of the processors",
			Next:    "Virtual machines and systems other than Linux usually have none.",
		}
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
		now := readWord(path)
		if i == 0 {
			out.Current = now
		}
		out.Differ = out.Differ || now != out.Current
	}
	return out, nil
}

func available(governor string) []string {
	return append(
		[]string{},
		strings.Fields(readWord(filepath.Join(filepath.Dir(governor), "scaling_available_governors")))...)
}

// readWord returns the content of a file in sysfs, or "".
func readWord(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 4<<10)) // an error leaves the text empty
	return strings.TrimSpace(string(b))
}

// setGovernor sets the governor of all processors. If one fails, it restores the
// previous governors.
func (m *updates) setGovernor(c *tool.Call, all []string, to string) error {
	if err := m.cfg.Rules.Check(c, "set its governor"); err != nil {
		return err
	}
	for _, path := range all {
		if there := available(path); !slices.Contains(there, to) {
			return &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: fmt.Sprintf("there is no governor %q", to),
				Next:    "Give one of " + strings.Join(there, ", ") + ".",
			}
		}
	}
	var was []string
	for i, path := range all {
		was = append(was, readWord(path))
		err := os.WriteFile(path, []byte(to), 0)
		if err == nil {
			continue
		}
		for j := range i {
			err = errors.Join(err, os.WriteFile(all[j], []byte(was[j]), 0))
		}
		if errors.Is(err, fs.ErrPermission) {
			return &tool.Refusal{
				Code:    tool.CodeDenied,
				Message: "the system does not let this host set the governor",
				Next:    "Only a host that runs as root can set it.",
			}
		}
		return err
	}
	return nil
}
