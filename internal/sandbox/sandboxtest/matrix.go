package sandboxtest

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Verdict is the result of one group of checks with one driver.
type Verdict struct{ Group, Tells string }

const verdictMark = "verdict: "

func (v Verdict) String() string { return verdictMark + v.Group + ": " + v.Tells }

// Verdicts returns the verdicts that a run of the suite has printed.
func Verdicts(output []byte) (all []Verdict) {
	for line := range bytes.Lines(output) {
		_, after, found := strings.Cut(strings.TrimSpace(string(line)), verdictMark)
		group, tells, whole := strings.Cut(after, ": ")
		if found && whole {
			all = append(all, Verdict{group, tells})
		}
	}
	return all
}

// MatrixVariable names the environment variable with the path of the matrix to write.
const MatrixVariable = "GATEHOUSE_SANDBOX_MATRIX"

// columns are the drivers of the matrix, with the title of each.
var columns = []string{"namespaces, root", "namespaces, a user", "process", "gvisor", "oci", "qemu", "firecracker"}

// groups describes each group of checks.
var groups = []struct{ name, about string }{
	{"calls", "streams, environment, folder, many at once, background"},
	{"ends", "codes, signals, deadlines; nothing that came of a call outlives it"},
	{"output", "limits, writers that fail or block, frames made up by the code"},
	{"floods", "both streams, zeros, no line ends, no text, 32 MiB"},
	{"terminals", "a terminal of its own, and its size"},
	{"files", "whole or not at all; FIFOs, links, /proc, races of links"},
	{"identity", "users, capabilities, no_new_privs, seccomp, descriptors, environment"},
	{"isolation", "the host's files and processes, 60 system calls, other sandboxes"},
	{"network", "loopback, private, metadata, public, DNS, abstract sockets of the host"},
	{"way out", "the proxy, its rules, and ways around it"},
	{"resources", "memory, disk, files, descriptors, processes, processors"},
	{"pressure", "threads, memfd, pipes, watches, shared memory, sockets, queues, sparse files"},
	{
		"exhaustion",
		"what the kernel counts for a user or the machine: taken by one sandbox, the host and others have it",
	},
	{"traps", "full tmpfs, process 1 out of memory, the agent's user, x32 and int 0x80, what tells of the host"},
	{"lifecycle", "closing during a call, other limits, a busy one beside"},
	{"odd ends", "closing while it forks, twice, while written to, while made"},
	{"pause", "everything stands still and goes on, many times; the time of calls does too; closing while paused"},
	{"images", "another system than the host's; nothing of it can be written to, or leads out"},
	{
		"archives",
		"folders in and out as a tar; names that lead out, links, devices, sizes that are lies, too many files",
	},
	{"ports", "servers in the sandbox, reached from the host, both ways and by halves"},
	{"strict", "identity and isolation again with the strict profile, under which ordinary programs run"},
	{"usage", "processor time, memory, processes, disk, ends for want of memory"},
	{"snapshots", "programs, files, clock and randomness of what goes on from a moment, once and more often"},
}

// Record writes the verdicts of one driver into the matrix, if one is to be written. The name is that of a column.
func Record(t *testing.T, driver string, verdicts []Verdict) {
	t.Helper()
	path := os.Getenv(MatrixVariable)
	if path == "" || len(verdicts) == 0 {
		return
	}
	old, _ := os.ReadFile(path) // there may be none
	table := readMatrix(old)
	for _, v := range verdicts {
		if table[v.Group] == nil {
			table[v.Group] = map[string]string{}
		}
		table[v.Group][driver] = v.Tells
	}
	if err := os.WriteFile(path, writeMatrix(table), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readMatrix returns the cells by group and driver.
func readMatrix(b []byte) map[string]map[string]string {
	table := map[string]map[string]string{}
	var heads []string
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|") || len(cells) < 3 || strings.HasPrefix(cells[0], "---"):
		case cells[0] == "checks":
			heads = cells
		case len(cells) == len(heads):
			table[cells[0]] = map[string]string{}
			for i := 2; i < len(cells); i++ {
				table[cells[0]][heads[i]] = cells[i]
			}
		}
	}
	return table
}

const matrixHead = `# What holds in which sandbox

<!-- Written by the suite itself. Do not edit. -->

Every driver passes one suite, ` + "`internal/sandbox/sandboxtest`" + `. Its last run, which wrote
this page, was

    ` + MatrixVariable + `=$PWD/docs/sandbox-matrix.md go test -p 1 -count=1 -run 'TestSuite' ./internal/sandbox/...

*not offered* means that the driver does not support this. *held* means that all checks of the group passed. *not
held back* is the expected result of checks of isolation for a driver without isolation; from the tier
` + "`namespaces`" + ` on, every group must hold. *not run* means that there is no result: the driver was not
available, or the machine lacked something it needs.

`

func writeMatrix(table map[string]map[string]string) []byte {
	var b strings.Builder
	b.WriteString(matrixHead)
	fmt.Fprintf(&b, "| checks | about | %s |\n|---|---|%s\n", strings.Join(columns, " | "),
		strings.Repeat("---|", len(columns)))
	for _, g := range groups {
		fmt.Fprintf(&b, "| %s | %s |", g.name, g.about)
		for _, c := range columns {
			cell := table[g.name][c]
			if cell == "" {
				cell = "not run"
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	return []byte(b.String())
}

// known reports whether a group is described, so that none is missing in the matrix.
func known(name string) bool {
	return slices.ContainsFunc(groups, func(g struct{ name, about string }) bool { return g.name == name })
}
