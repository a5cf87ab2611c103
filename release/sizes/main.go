// Command sizes builds the program as a release does, but with its symbols, and prints where its bytes are: the sections
// of the file, and code and data by Go module. It writes what each capability has to docs/release.md.
// Run it in the folder release: go run ./sizes
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

	"gatehouse/release/build"
	"gatehouse/release/product"
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
	source, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	if err := build.Compile(source, "-w", program, product.Platform{OS: "linux", Arch: "amd64"}, "./cmd/gatehouse"); err != nil {
		return err
	}
	file, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer file.Close()
	var tables, code float64
	for _, s := range file.Sections {
		switch s.Name {
		case ".gopclntab":
			tables = float64(s.Size)
		case ".text":
			code = float64(s.Size)
		}
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
	sizes, parts := map[string]int{}, map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(symbols)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || strings.ContainsAny(f[2], "UbB") || strings.HasSuffix(f[3], "drbg.memory") {
			continue // what is in no section of the file
		}
		if size, err := strconv.Atoi(f[1]); err == nil {
			sizes[module(f[3], modules)] += size
			part := capability(f[3])
			parts[part] += float64(size)
			if f[2] == "t" || f[2] == "T" {
				parts[part] += float64(size) * tables / code
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return cmp.Compare(sizes[b], sizes[a]) })
	for _, name := range names[:min(30, len(names))] {
		fmt.Printf("%6.2f MB  %s\n", float64(sizes[name])/1e6, name)
	}
	if err := addEmbedded(source, parts); err != nil {
		return err
	}
	whole, err := os.Stat(program)
	if err != nil {
		return err
	}
	// Its own symbols are in no release.
	stripped := float64(whole.Size())
	for _, s := range file.Sections {
		if s.Name == ".symtab" || s.Name == ".strtab" {
			stripped -= float64(s.FileSize)
		}
	}
	left := stripped
	for _, size := range parts {
		left -= size
	}
	parts[rest] += left
	return writeTable(filepath.Join(source, "docs", "release.md"), parts, stripped)
}

// capabilities have the beginnings of the names of their packages. A module of others belongs to the capability that has it
// linked.
var capabilities = []struct {
	name     string
	packages []string
}{
	{"TypeScript in `code_run` (esbuild)", []string{"github.com/evanw/esbuild"}},
	{"rules with expressions (CEL)", []string{"cel.dev/", "google.golang.org/protobuf", "google.golang.org/genproto",
		"github.com/antlr4-go", "gatehouse/internal/access/permit"}},
	{"stores (SQLite)", []string{"modernc.org/", "gatehouse/internal/files/sqlfile"}},
	{"sandboxes and their images", []string{"gatehouse/internal/sandbox", "gatehouse/internal/modules/sandbox",
		"github.com/google/go-containerregistry", "github.com/docker/", "github.com/opencontainers/", "github.com/sirupsen/"}},
	{"packages", []string{"gatehouse/internal/packages", "gatehouse/internal/modules/packages", "github.com/yosida95/",
		"go.yaml.in/"}},
	{"browser", []string{"gatehouse/internal/modules/webview", "github.com/chromedp/", "github.com/go-json-experiment/"}},
	{"the machine (`system`)", []string{"gatehouse/internal/modules/system", "github.com/godbus/", "golang.zx2c4.com/",
		"github.com/vishvananda/", "github.com/pires/"}},
	{"models (`ml`)", []string{"gatehouse/internal/modules/ml"}},
	{"search and memory (`rag`, `brain`)", []string{"gatehouse/internal/modules/rag", "gatehouse/internal/modules/brain",
		"gatehouse/internal/files/index", "gatehouse/internal/files/embed", "gatehouse/internal/files/extract",
		"github.com/ledongthuc/"}},
	{"editor and programs (`lsp`, `build`, `ide`, `code`)", []string{"gatehouse/internal/modules/lsp",
		"gatehouse/internal/modules/build", "gatehouse/internal/modules/ide", "gatehouse/internal/modules/code",
		"gatehouse/internal/exec/builds", "gatehouse/internal/exec/acp", "gatehouse/internal/exec/idelink"}},
	{"changes that wait (`stage`)", []string{"gatehouse/internal/files/stage", "gatehouse/internal/files/fusemount",
		"gatehouse/internal/exec/overlay", "github.com/hanwen/"}},
	{"backups, updates", []string{"gatehouse/internal/maintenance", "gatehouse/internal/modules/backup",
		"gatehouse/internal/modules/update", "github.com/minio/", "github.com/cloudsoda/", "github.com/jcmturner/",
		"filippo.io/age", "aead.dev/"}},
	{"clusters", []string{"gatehouse/internal/cluster", "github.com/nats-io/"}},
	{"pages for people", []string{"gatehouse/internal/server/web."}},
	{"metrics and traces", []string{"gatehouse/internal/telemetry", "github.com/prometheus/"}},
	{"command line and settings", []string{"gatehouse/internal/cli", "gatehouse/internal/config", "github.com/spf13/",
		"github.com/goccy/", "github.com/BurntSushi/", "github.com/tailscale/"}},
	{"other tools", []string{"gatehouse/internal/modules", "gatehouse/internal/files", "gatehouse/internal/exec",
		"mvdan.cc/", "github.com/shirou/"}},
	{"protocol, dispatch, access", []string{"gatehouse/"}},
}

const rest = "the Go library, the runtime, other modules, types"

// addEmbedded adds the files that packages embed, which have no symbols.
func addEmbedded(source string, parts map[string]float64) error {
	list, err := build.Go(source, []string{"GOOS=linux", "GOARCH=amd64"}, "list", "-deps",
		"-f", "{{range .EmbedFiles}}{{$.ImportPath}}.\t{{$.Dir}}/{{.}}\n{{end}}", "./cmd/gatehouse")
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		name, path, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		parts[capability(name)] += float64(info.Size())
	}
	return nil
}

// capability returns which capability a symbol belongs to.
func capability(symbol string) string {
	if _, after, ok := strings.Cut(symbol, ":"); ok && !strings.Contains(symbol[:len(symbol)-len(after)], "/") {
		symbol = strings.TrimLeft(after, ".*")
	}
	for _, c := range capabilities {
		for _, p := range c.packages {
			if strings.HasPrefix(symbol, p) {
				return c.name
			}
		}
	}
	return rest
}

const (
	begin = "<!-- sizes: written by go run ./sizes in the folder release -->\n"
	end   = "<!-- end of sizes -->"
)

// writeTable writes the capabilities and their sizes to a document.
func writeTable(path string, parts map[string]float64, stripped float64) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, after, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(after, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table", path)
	}
	table := fmt.Sprintf("\n| capability | MB |\n|---|---|\n| all | %.1f |\n", stripped/1e6)
	for _, name := range slices.SortedFunc(maps.Keys(parts), func(a, b string) int { return cmp.Compare(parts[b], parts[a]) }) {
		table += fmt.Sprintf("| %s | %.1f |\n", name, parts[name]/1e6)
	}
	return os.WriteFile(path, []byte(before+begin+table+"\n"+end+after), 0o644)
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
