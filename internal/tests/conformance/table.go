package conformance

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Column is one suite's results over one endpoint.
type Column struct {
	Name      string
	Want      int // scenarios
	Scenarios []Scenario
	Left      map[string]string // scenarios that were not run, and why
	Again     []string          // scenarios that were run again, and the check that was the reason
}

// Clean returns the problems of a column, one per line; none means that every scenario ran and every check
// succeeded.
func (c Column) Clean() []string {
	var wrong []string
	if len(c.Scenarios) != c.Want {
		wrong = append(wrong, fmt.Sprintf("%s: %d scenarios left a result, want %d", c.Name, len(c.Scenarios), c.Want))
	}
	for _, s := range c.Scenarios {
		for _, k := range s.Wrong() {
			wrong = append(
				wrong,
				fmt.Sprintf("%s: %s: %s %s (%s): %s", c.Name, s.Name, k.Status, k.ID, k.Name, cut(k.Message)),
			)
		}
		if len(s.Checks) == 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %s checked nothing", c.Name, s.Name))
		}
	}
	return wrong
}

func cut(s string) string {
	const most = 1500 // bytes; a schema failure quotes whole listings
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// Print writes all columns as one table of passed/checked, followed by what was left out and why.
func Print(w io.Writer, columns []Column) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "scenario")
	for _, c := range columns {
		fmt.Fprint(t, "\t", c.Name)
	}
	fmt.Fprintln(t)
	for _, name := range rows(columns) {
		fmt.Fprint(t, name)
		for _, c := range columns {
			fmt.Fprint(t, "\t", c.cell(name))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprint(t, "scenarios, checks")
	for _, c := range columns {
		fmt.Fprint(t, "\t", c.total())
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return printLeft(w, columns)
}

// printLeft prints each thing that was left out once, and what was run again.
func printLeft(w io.Writer, columns []Column) error {
	left := map[string]bool{}
	for _, c := range columns {
		for what, why := range c.Left {
			left[what+": "+why] = true
		}
	}
	for _, line := range slices.Sorted(maps.Keys(left)) {
		if _, err := fmt.Fprintf(w, "left out over lines: %s\n", line); err != nil {
			return err
		}
	}
	for _, c := range columns {
		for _, what := range c.Again {
			if _, err := fmt.Fprintf(w, "run again, %s: %s\n", c.Name, what); err != nil {
				return err
			}
		}
	}
	return nil
}

func rows(columns []Column) []string {
	var names []string
	for _, c := range columns {
		for _, s := range c.Scenarios {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (c Column) cell(name string) string {
	i := slices.IndexFunc(c.Scenarios, func(s Scenario) bool { return s.Name == name })
	if i < 0 {
		return "-"
	}
	return c.Scenarios[i].String()
}

// String is passed/checked, with warnings and skipped checks when there are any.
func (s Scenario) String() string {
	passed, failed := s.Count("SUCCESS"), s.Count("FAILURE")
	notes := []string{fmt.Sprintf("%d/%d", passed, passed+failed)}
	if n := s.Count("WARNING"); n > 0 {
		notes = append(notes, fmt.Sprintf("%d warned", n))
	}
	if n := s.Count("SKIPPED"); n > 0 {
		notes = append(notes, fmt.Sprintf("%d skipped", n))
	}
	return strings.Join(notes, ", ")
}

func (c Column) total() string {
	clean, passed, all := 0, 0, 0
	for _, s := range c.Scenarios {
		if len(s.Wrong()) == 0 {
			clean++
		}
		passed += s.Count("SUCCESS")
		all += s.Count("SUCCESS") + s.Count("FAILURE")
	}
	return fmt.Sprintf("%d/%d, %d/%d", clean, c.Want, passed, all)
}
