// Command manual writes the manual pages and the completions of gatehouse's
// commands into a folder, for releases.
//
// It is a program of its own, because package text/template, which the pages
// need, would make the program itself larger by 5 MB.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"gatehouse/internal/app"
	"gatehouse/internal/cli"
)

func main() {
	dir := flag.String("o", "", "folder to write to: man1 and completions are created in it")
	seconds := flag.Int64("time", 0, "date of the pages, in seconds since 1970")
	flag.Parse()
	if err := write(*dir, time.Unix(*seconds, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func write(dir string, date time.Time) error {
	root := cli.Root(cli.Environment{
		In:     os.Stdin,
		Out:    io.Discard,
		Err:    io.Discard,
		Getenv: func(string) string { return "" }, // defaults in the pages are not those of this user
	})
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	man, completions := filepath.Join(dir, "man1"), filepath.Join(dir, "completions")
	for _, d := range []string{man, completions} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	head := &doc.GenManHeader{
		Section: "1",
		Date:    &date,
		Source:  "Gatehouse " + app.Version,
		Manual:  "Gatehouse",
	}
	if err := doc.GenManTree(root, head, man); err != nil {
		return err
	}
	return writeCompletions(root, completions)
}

func writeCompletions(root *cobra.Command, dir string) error {
	for name, generate := range map[string]func(string) error{
		"gatehouse.bash": func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"_gatehouse":     root.GenZshCompletionFile,
		"gatehouse.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
		"gatehouse.ps1":  root.GenPowerShellCompletionFileWithDesc,
	} {
		if err := generate(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
