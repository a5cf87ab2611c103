package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"gatehouse/internal/packages"
)

// lockFile is the name of a lock file unless another is given.
const lockFile = "gatehouse.lock.json"

func packageLock(w Environment) *cobra.Command {
	var p packageFlags
	file, check := lockFile, false
	c := &cobra.Command{
		Use:   "lock [NAME...]",
		Short: "Write a lock file of packages, which can be committed",
		Long: `Write a lock file of packages, all or those that are named: their sources and
versions, digests of their programs, and the hashes of their approved tools. It has
no values of secrets. gatehouse package sync installs from it.`,
		Example: `  gatehouse package lock
  gatehouse package lock memory -o memory.lock.json
  gatehouse package lock --check`,
		RunE: func(c *cobra.Command, args []string) error {
			type locked struct {
				Lock     json.RawMessage
				Warnings []string
			}
			asJSON := p.json
			p.json = false
			in := givenMembers(map[string]any{"ids": args})
			return callOnce(&p, c, w, "package_lock", in, func(out locked) error {
				for _, warning := range out.Warnings {
					fmt.Fprintf(w.Err, "[gatehouse] %s\n", printable(warning))
				}
				var text bytes.Buffer
				if err := json.Indent(&text, out.Lock, "", "  "); err != nil {
					return err
				}
				text.WriteByte('\n')
				switch {
				case check:
					return checkLock(w, file, text.Bytes())
				case asJSON || file == "-":
					_, err := w.Out.Write(text.Bytes())
					return err
				}
				if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
					return err
				}
				fmt.Fprintf(w.Err, "[gatehouse] Wrote %s\n", file)
				return nil
			})
		},
	}
	p.registerFlags(c.Flags())
	c.Flags().StringVarP(&file, "output", "o", lockFile, "lock `file`; - prints it")
	c.Flags().BoolVar(&check, "check", false, "write nothing, and fail if the lock file is not of these packages")
	return c
}

// checkLock fails unless a lock file has exactly this text.
func checkLock(w Environment, file string, text []byte) error {
	was, err := readLock(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(bytes.TrimSpace(was), bytes.TrimSpace(text)) {
		return fmt.Errorf("the packages are not those of %s: gatehouse package sync --dry-run shows the differences, "+
			"package lock writes the file again", file)
	}
	fmt.Fprintf(w.Err, "[gatehouse] The packages are those of %s\n", file)
	return nil
}

const maxLockFile = 32 << 20 // bytes

func readLock(file string) ([]byte, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, usagef("there is no lock file %s: gatehouse package lock writes one", file)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLockFile+1))
	if err == nil && (len(text) > maxLockFile || !json.Valid(text)) {
		err = fmt.Errorf("%s is no lock file of gatehouse, which is JSON of at most %d bytes", file, maxLockFile)
	}
	return text, err
}

func packageSync(w Environment) *cobra.Command {
	var p packageFlags
	file, dryRun := lockFile, false
	c := &cobra.Command{
		Use:   "sync [NAME...]",
		Short: "Make packages those of a lock file",
		Long: `Make packages those of a lock file, all or those that are named: install the
missing ones in its versions, and approve exactly what it approves. A program with
another digest than that of the lock file is not installed. Other packages stay.`,
		Example: `  gatehouse package sync --dry-run
  gatehouse package sync --yes
  gatehouse package sync memory --file memory.lock.json`,
		RunE: func(c *cobra.Command, args []string) error {
			if !dryRun {
				if err := p.canAgree(w); err != nil {
					return err
				}
			}
			return syncPackages(&p, c, w, file, args, dryRun)
		},
	}
	p.registerFlags(c.Flags())
	p.addYes(c.Flags())
	c.Flags().StringVar(&file, "file", lockFile, "lock `file`")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show the differences and change nothing")
	return c
}

func syncPackages(p *packageFlags, c *cobra.Command, w Environment, file string, names []string, dryRun bool) error {
	text, err := readLock(file)
	if err != nil {
		return err
	}
	in := givenMembers(map[string]any{"lock": json.RawMessage(text), "ids": names, "dry_run": dryRun})
	return callOnce(p, c, w, "package_sync", in, func(out struct{ Steps []packages.Step }) error {
		if len(out.Steps) == 0 {
			fmt.Fprintf(w.Err, "[gatehouse] The packages are those of %s\n", file)
			return nil
		}
		return printSteps(w, out.Steps)
	})
}
