package sshkeys

import (
	"bytes"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/tool"
)

const (
	maxFile     = 1 << 20 // bytes
	maxKeys     = 1000
	shortestRSA = 2048 // bits
)

func itoa(n int) string { return strconv.Itoa(n) }

// file is the file of keys in a folder.
type file struct{ folder string }

func (f *file) path() string { return filepath.Join(f.folder, "authorized_keys") }

// line is one line of the file with its end, and what it says.
type line struct {
	text    []byte
	key     ssh.PublicKey // nil where it is none
	comment string
	options []string
}

func (l line) is(key ssh.PublicKey) bool {
	return l.key != nil && bytes.Equal(l.key.Marshal(), key.Marshal())
}

// remark reports whether the line says nothing to sshd.
func (l line) remark() bool {
	t := bytes.TrimSpace(l.text)
	return len(t) == 0 || t[0] == '#'
}

// parse reads a file; together the lines' texts are the file.
func parse(text []byte) (all []line) {
	for t := range bytes.Lines(text) {
		l := line{text: t}
		if !l.remark() {
			if key, comment, options, rest, err := ssh.ParseAuthorizedKey(t); err == nil && len(bytes.TrimSpace(rest)) == 0 {
				l.key, l.comment, l.options = key, comment, options
			}
		}
		all = append(all, l)
	}
	return all
}

// parseNew reads a key that somebody wants to add.
func parseNew(text string) (line, error) {
	bad := func(next, format string, args ...any) (line, error) {
		return line{}, &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf(format, args...), Next: next}
	}
	text = strings.TrimSpace(text)
	if strings.Contains(text, "PRIVATE KEY") {
		return bad("Give the public one, from the file that ends in .pub, and make a new pair: this one has been shown.", "this is a private key")
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return bad("Give one key at a time.", "a key is one line without control characters")
	}
	key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil {
		return bad("It looks like: ssh-ed25519 AAAAC3Nza... name", "this is no public key of OpenSSH")
	}
	switch k := key.(type) {
	case *ssh.Certificate:
		return bad("Add the key itself, or its authority by hand.", "this is a certificate, which opens nothing as a key")
	case ssh.CryptoPublicKey:
		if r, ok := k.CryptoPublicKey().(*rsa.PublicKey); ok && r.N.BitLen() < shortestRSA {
			return bad("Make one with ssh-keygen -t ed25519.", "the RSA key has %d bits; expected at least %d", r.N.BitLen(), shortestRSA)
		}
	}
	if strings.HasPrefix(key.Type(), "ssh-dss") {
		return bad("Make one with ssh-keygen -t ed25519.", "DSA keys are too weak, and OpenSSH takes none any more")
	}
	return line{text: []byte(text + "\n"), key: key, comment: comment, options: options}, nil
}

// read gives the lines of the file; none where there is no file.
func (f *file) read() ([]line, error) {
	info, err := os.Lstat(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &tool.Refusal{Code: "unsupported", Message: f.path() + ": " + errLink.Error()}
	}
	in, err := os.Open(f.path())
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("%s has more than %d bytes", f.path(), maxFile)}
	}
	return parse(text), nil
}

// change reads, changes and replaces the file, one process of ours at a time.
func (f *file) change(how func([]line) ([]line, error)) error {
	unlock, err := atomicfile.Lock(f.path() + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	all, err := f.read()
	if err != nil {
		return err
	}
	if all, err = how(all); err != nil {
		return err
	}
	if len(all) > maxKeys {
		return tool.Refuse("too_large", "there are %d lines, which is as many as can be kept", len(all)-1)
	}
	var text []byte
	for i, l := range all {
		text = append(text, l.text...)
		if !bytes.HasSuffix(l.text, []byte("\n")) && i < len(all)-1 {
			text = append(text, '\n')
		}
	}
	if len(text) > maxFile {
		return tool.Refuse("too_large", "%s would have more than %d bytes", f.path(), maxFile)
	}
	return atomicfile.Write(f.path(), text)
}
