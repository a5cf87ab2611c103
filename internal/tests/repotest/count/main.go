// Command count prints figures about the Go code of a tree: lines, packages,
// lengths, comments, long lines, words that comments should not use, and names
// that too many functions share.
//
//	go run ./internal/tests/repotest/count [DIR]        a table of DIR, by default this repository
//	go run ./internal/tests/repotest/count A B          two trees side by side
//
// It reads source files alone, so that it counts any tree, also one that does
// not compile. Folders named testdata, node_modules or with a leading dot, and
// generated files, are left out.
package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	dirs := os.Args[1:]
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	columns := make([]*figures, 0, len(dirs))
	for _, dir := range dirs {
		f, err := read(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, "count:", err)
			os.Exit(1)
		}
		columns = append(columns, f)
	}
	fmt.Print(table(columns))
	last := columns[len(columns)-1]
	fmt.Println(
		"\nNames used by more than",
		sharedLimit,
		"unrelated functions:",
		strings.Join(last.sharedNames(), ", "),
	)
	fmt.Println("Structs with 30 or more fields:", strings.Join(last.large, ", "))
}

// table formats one row per figure, with one column per tree.
func table(columns []*figures) string {
	var b strings.Builder
	for i, row := range columns[0].rows() {
		fmt.Fprintf(&b, "| %-58s |", row.name)
		for _, c := range columns {
			fmt.Fprintf(&b, " %9s |", c.rows()[i].value)
		}
		b.WriteString("\n")
		if i == 0 {
			b.WriteString(
				"|" + strings.Repeat("-", 60) + "|" + strings.Repeat(strings.Repeat("-", 11)+"|", len(columns)) + "\n",
			)
		}
	}
	return b.String()
}

type row struct{ name, value string }

// rows returns the figures in the order of the table.
func (f *figures) rows() []row {
	count := func(name string, n int) row { return row{name, fmt.Sprint(n)} }
	rate := func(name string, n, of, per int) row {
		return row{name, fmt.Sprintf("%.1f", float64(n)*float64(per)/float64(max(of, 1)))}
	}
	return []row{
		{"figure", f.name},
		count("lines", f.lines),
		count("code lines, without blanks and comments", f.code),
		count("code lines outside tests", f.productCode),
		count("files", f.files),
		count("packages", len(f.packages)),
		count("folders directly below internal/", len(f.folders)),
		count("functions outside tests", len(f.functions)),
		count("median function, lines", median(f.functions)),
		count("longest function, lines", slices.Max(append(f.functions, 0))),
		count("functions over 80 lines", over(f.functions, 80)),
		count("longest file, lines", slices.Max(append(f.fileLengths, 0))),
		rate("comment lines in 100 lines, outside tests", f.productComments, f.productLines, 100),
		rate("lines over 120 columns in 1,000", f.long, f.lines, 1000),
		rate("banned words in 1,000 comment lines", f.banned, f.comments, 1000),
		count("structs with a context.Context field", f.contexts),
		count("structs with two or more mutexes", f.mutexes),
		count("structs with 30 or more fields", len(f.large)),
		count("names used by more than 10 unrelated functions", len(f.sharedNames())),
	}
}

func median(n []int) int {
	if len(n) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(n))
	return s[len(s)/2]
}

func over(n []int, limit int) int {
	all := 0
	for _, v := range n {
		if v > limit {
			all++
		}
	}
	return all
}

// sharedLimit is how many unrelated functions may have one name.
const sharedLimit = 10

// sharedNames returns the names that more than sharedLimit unrelated functions
// have, most used first.
func (f *figures) sharedNames() []string {
	var names []string
	uses := map[string]int{}
	for _, fn := range f.functionNames {
		if standardNames[fn.name] || fn.method && f.interfaces[methodKey(fn.name, fn.folder)] {
			continue // methods that implement one interface are related
		}
		if fn.program && !fn.method && fn.name == "run" {
			continue // what main calls, by convention
		}
		uses[fn.name]++
		if uses[fn.name] == sharedLimit+1 {
			names = append(names, fn.name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(uses[b], uses[a]), cmp.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%s (%d)", name, uses[name])
	}
	return names
}

// standardNames are the names that the language, the standard library's
// interfaces or its conventions give to functions.
var standardNames = map[string]bool{
	"init": true, "main": true, "New": true, "Open": true, "String": true, "Error": true, "Unwrap": true, "Is": true,
	"Close": true, "Read": true, "Write": true, "Len": true, "Less": true, "Swap": true, "Run": true, "Start": true,
	"Stop": true, "ServeHTTP": true, "MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true,
	"UnmarshalText": true, "UnmarshalYAML": true, "LogValue": true, "Format": true,
}
