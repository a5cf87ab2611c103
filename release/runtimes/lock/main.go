// Command lock chooses the newest versions of what the full image has beside the program, and writes
// them to lock.json. Run it in the folder release: go run ./runtimes/lock
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"

	"gatehouse/release/runtimes"
)

const (
	suite = "trixie"
	node  = "24" // the newest of its line, which has long-term support
)

// packages are those whose programs the image is for. A shell and what build steps of packages
// expect come with them; libatomic1 and libstdc++6 are for Node.
var packages = []string{
	"base-files", "bash", "coreutils", "dash", "debianutils", "diffutils", "findutils", "grep", "gzip", "libatomic1",
	"libstdc++6",
	"mawk", "git", "openssh-client", "python3", "sed", "tar", "tzdata",
}

func main() {
	to := flag.String("o", "runtimes/lock.json", "file to write")
	keyring := flag.String("keyring", "/usr/share/keyrings/debian-archive-keyring.gpg",
		"keys that sign Debian's indexes")
	flag.Parse()
	if err := lock(context.Background(), *to, *keyring); err != nil {
		fmt.Fprintln(os.Stderr, "lock:", err)
		os.Exit(1)
	}
}

func lock(ctx context.Context, to, keyring string) error {
	f, err := os.Open(keyring)
	if err != nil {
		return err
	}
	defer f.Close()
	keys, err := openpgp.ReadKeyRing(f)
	if err != nil {
		return err
	}
	all := runtimes.Lock{
		Suite: suite,
		Time:  time.Now().UTC().Truncate(time.Second),
		Items: map[string][]runtimes.Item{},
	}
	for _, arch := range []string{"amd64", "arm64"} {
		debs, err := runtimes.ResolveDebian(ctx, suite, arch, keys, packages)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		others, err := runtimes.ResolveOthers(ctx, arch, node)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		all.Items[arch] = append(debs, others...)
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Clean(to), append(text, '\n'), 0o644)
}
