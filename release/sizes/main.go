// Command sizes builds the program with its symbols and prints where its bytes are: the sections of the file, and code
// and data by Go module. Run it in the folder release: go run ./sizes
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	dir, err := os.MkdirTemp("", "sizes")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := report(filepath.Join(dir, "gatehouse")); err != nil {
		log.Fatal(err)
	}
}

func report(program string) error {
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./cmd/gatehouse")
	build.Dir = ".."
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w: %s", err, out)
	}
	file, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, s := range file.Sections {
		if s.Flags&elf.SHF_ALLOC != 0 && s.Type != elf.SHT_NOBITS && s.Size > 100_000 {
			fmt.Printf("%6.2f MB  section %s\n", float64(s.Size)/1e6, s.Name)
		}
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	modules := []string{info.Main.Path}
	for _, d := range info.Deps {
		modules = append(modules, d.Path)
	}
	// The module of a package is the longest that its path begins with.
	slices.SortFunc(modules, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	symbols, err := exec.Command("go", "tool", "nm", "-size", program).Output()
	if err != nil {
		return fmt.Errorf("list the symbols: %w", err)
	}
	sizes := map[string]int{}
	for lines := bufio.NewScanner(bytes.NewReader(symbols)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || strings.ContainsAny(f[2], "UbB") || strings.HasSuffix(f[3], "drbg.memory") {
			continue // what is in no section of the file
		}
		if size, err := strconv.Atoi(f[1]); err == nil {
			sizes[module(f[3], modules)] += size
		}
	}
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	for _, name := range names[:min(30, len(names))] {
		fmt.Printf("%6.2f MB  %s\n", float64(sizes[name])/1e6, name)
	}
	return nil
}

// module returns the Go module of a symbol.
func module(symbol string, modules []string) string {
	if strings.HasPrefix(symbol, "go:func.") {
		return "(tables of functions)"
	}
	_, after, ok := strings.Cut(symbol, ":") // type:, go:itab.
	if ok && !strings.Contains(symbol[:len(symbol)-len(after)], "/") {
		symbol = strings.TrimLeft(after, ".*")
	}
	for _, m := range modules {
		if rest, ok := strings.CutPrefix(symbol, m); ok && rest != "" && (rest[0] == '.' || rest[0] == '/') {
			return m
		}
	}
	return "the Go library and runtime"
}
