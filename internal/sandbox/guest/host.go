//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/sandbox/rootfs"
)

// hostLayout is part of the key of a file system of the host's programs.
const hostLayout = "1"

// programs are copied from the host, if they exist, with the libraries they require.
var programs = strings.Fields(`
sh bash dash python3 node
[ arch b2sum base32 base64 basename cat chgrp chmod chown cksum comm cp csplit cut date dd df dir dirname du echo env
expand expr factor false fmt fold groups head hostid id install join link ln logname ls md5sum mkdir mkfifo mktemp mv
nice nl nohup nproc numfmt od paste pathchk pr printenv printf ptx pwd readlink realpath rm rmdir seq sha1sum sha224sum
sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty sum sync tac tail tee test timeout touch tr
true truncate tsort tty uname unexpand uniq unlink users vdir wc whoami yes
awk gawk mawk sed grep egrep fgrep rg find xargs diff cmp patch tar gzip gunzip zcat bzip2 xz unxz zstd zip unzip file
which less more ps top pgrep pkill kill free uptime watch setsid getopt column rev hexdump xxd strings
curl wget openssl jq sqlite3 perl ruby lua git make bc dc
`)

// libraries are loaded by name at run time, so that no executable lists them.
var libraries = []string{"libgcc_s.so.1", "libstdc++.so.6", "libnss_files.so.2", "libnss_dns.so.2",
	"libresolv.so.2", "libm.so.6"}

// folders of the host are copied whole, if they exist and are not too large.
var folders = []string{
	"/etc/alternatives", "/etc/ssl/certs", "/usr/share/ca-certificates", "/usr/share/zoneinfo",
	"/usr/lib/locale/C.utf8",
	"/usr/share/terminfo/x", "/lib/terminfo",
}

// files are copied singly.
var files = []string{
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ssl/openssl.cnf", "/etc/localtime", "/etc/mime.types",
	"/usr/lib/ssl/openssl.cnf",
}

const (
	largestFolder = 512 << 20        // bytes of a folder that is copied whole
	pythonWait    = 30 * time.Second // for an interpreter to print where its library is
)

// hostRoot returns a file system of the host's programs and what they require.
func (g *Cache) hostRoot(ctx context.Context) (Disk, error) {
	s := newSelection(g.log.Warn)
	if err := s.collect(ctx); err != nil {
		return Disk{}, fmt.Errorf("the root file system of the host's programs: %w", err)
	}
	f, err := g.cached(ctx, "host", hostLayout+"\x00"+s.key(), func(path string) error {
		// The tree is in the same folder, so that files can be linked if they are on the same file system.
		tree := path + "-tree"
		defer os.RemoveAll(tree)
		if err := s.writeTree(tree); err != nil {
			return err
		}
		return format(ctx, path, tree)
	})
	return diskOf(f, err)
}

// collect finds everything that the file system contains.
func (s *selection) collect(ctx context.Context) error {
	for _, name := range programs {
		if path := lookUp(name); path != "" {
			s.addPath(path)
		}
	}
	if lookUp("sh") == "" {
		return errors.New("the host has no program sh")
	}
	for _, name := range libraries {
		s.addLibrary(name, nil)
	}
	for _, f := range files {
		s.addPath(f)
	}
	for _, dir := range append(folders, pythonFolders(ctx, lookUp("python3"))...) {
		s.addFolder(dir)
	}
	for _, pattern := range []string{"/usr/lib/*/perl-base", "/usr/lib/*/gconv/gconv-modules*"} {
		found, _ := filepath.Glob(pattern)
		for _, dir := range found {
			s.addFolder(dir)
		}
	}
	return nil
}

// lookUp finds a program in the PATH of a sandbox.
func lookUp(name string) string {
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// pythonFolders asks Python where its library is.
func pythonFolders(ctx context.Context, python string) []string {
	if python == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pythonWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-I", "-c", "import sys\nfor p in sys.path: print(p)")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	said, err := cmd.Output()
	if err != nil {
		return nil
	}
	var all []string
	for line := range strings.Lines(string(said)) {
		if dir := strings.TrimSpace(line); filepath.IsAbs(dir) {
			all = append(all, dir)
		}
	}
	return all
}

// writeTree creates the tree that the file system is made of, with hard links to the host's files if possible, else
// copies.
func (s *selection) writeTree(tree string) error {
	for _, dir := range []string{"proc", "sys", "dev", "run", "mnt", "tmp", "var/tmp", "home/user", "etc"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			return err
		}
	}
	for _, path := range s.order {
		if err := writeEntry(tree, path, s.found[path]); err != nil {
			return err
		}
	}
	for _, t := range rootfs.SystemFiles() {
		at := filepath.Join(tree, t.Path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755),
			os.WriteFile(at, []byte(t.Content), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

func writeEntry(tree, path string, info fs.FileInfo) error {
	at := filepath.Join(tree, path)
	if info.IsDir() {
		return os.MkdirAll(at, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(to, at)
	}
	if os.Link(path, at) == nil {
		return nil
	}
	return copyFile(path, at, info.Mode().Perm())
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = out.ReadFrom(in)
	return errors.Join(err, out.Close())
}

// interpreter returns the program in a file's first line, "" if the file is not a script.
func interpreter(head []byte) string {
	line, ok := bytes.CutPrefix(head, []byte("#!"))
	if !ok {
		return ""
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		return ""
	}
	return words[0]
}
