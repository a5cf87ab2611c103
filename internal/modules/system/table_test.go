package system

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

var (
	update = flag.Bool("update", false, "write the table of docs/appliance.md")
	ran    sync.Map // names of the tools that did what they were asked for
)

// noted remembers that a tool was run, and returns the refusal.
func noted(name, refused string) string {
	if refused == "" {
		ran.Store(name, true)
	}
	return refused
}

// Tools that run against something else than their daemon, and how.
var otherwise = map[string]string{
	"system_shutdown":           "run, with a target that ends nothing",
	"system_restart":            "run, with a target that ends nothing",
	"system_wifi_get":           "run, with and without a template's radio",
	"system_wifi_available_get": "run, with a template: there is no radio",
	"system_wifi_add":           "run, with a template: there is no radio",
	"system_wifi_connect":       "run, with a template: there is no radio",
	"system_wifi_remove":        "run, with a template: there is no radio",
	"system_wifi_country_set":   "run, with a link that is no radio",
	"system_zram":               "run, with a folder for the kernel's files",
	"system_firmware_update":    "run, with fwupd's test device",
}

// by is what does the work of tools that no daemon and not this host does.
var by = map[string]string{"system_zram": "Linux"}

// compareTable compares the table of the tools with that of the document, and returns an exit code.
func compareTable() int {
	const path = "../../../docs/appliance.md"
	const begins, ends = "<!-- tools: written by go test ./internal/modules/system -update -->\n",
		"<!-- end of tools -->"
	text, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	head, rest, _ := bytes.Cut(text, []byte(begins))
	_, tail, found := bytes.Cut(rest, []byte(ends))
	want := slices.Concat(head, []byte(begins+"\n"+table()+"\n"+ends), tail)
	switch {
	case !found:
		fmt.Fprintln(os.Stderr, path, "has no place for the table")
		return 1
	case bytes.Equal(want, text):
		return 0
	case *update:
		if err := os.WriteFile(path, want, 0o644); err == nil {
			return 0
		}
	}
	fmt.Fprintln(os.Stderr, path, "differs from what was run: go test ./internal/modules/system -update")
	return 1
}

func table() string {
	s := &system{bus: &bus{}, zram: kernelZRAM}
	all := s.daemonTools()
	slices.SortFunc(all, func(a, b daemonTool) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("| tool | daemon | run |\n|---|---|---|\n")
	for _, x := range all {
		how := cmp.Or(otherwise[x.Name], "run")
		if _, is := ran.Load(x.Name); !is {
			how = "not run: no test calls it"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", x.Name, cmp.Or(x.daemon, by[x.Name], "this host"), how)
	}
	return b.String()
}
