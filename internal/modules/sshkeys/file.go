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
	maxFile    = 1 << 20 // bytes
	maxKeys    = 1000
	minRSABits = 2048 // bits
)

func itoa(n int) string { return strconv.Itoa(n) }

// file is the authorized_keys file in a folder.
type file struct{ folder string }

func (f *file) path() string { return filepath.Join(f.folder, "authorized_keys") }

// line is one line of the file with its newline, and its parsed key.
type line struct {
	text    []byte
	key     ssh.PublicKey // nil if the line has no key
	comment string
	options []string
}

func (l line) is(key ssh.PublicKey) bool {
	return l.key != nil && bytes.Equal(l.key.Marshal(), key.Marshal())
}

// isComment reports whether sshd ignores the line.
func (l line) isComment() bool {
	t := bytes.TrimSpace(l.text)
	return len(t) == 0 || t[0] == '#'
}

// parseLines splits a file into lines, whose texts joined are the file.
func parseLines(text []byte) (all []line) {
	for t := range bytes.Lines(text) {
		l := line{text: t}
		if !l.isComment() {
			if key, comment, options, rest, err := ssh.ParseAuthorizedKey(t); err == nil &&
				len(bytes.TrimSpace(rest)) == 0 {
				l.key, l.comment, l.options = key, comment, options
			}
		}
		all = append(all, l)
	}
	return all
}

// parseNew parses a key that is to be added.
func parseNew(text string) (line, error) {
	bad := func(next, format string, args ...any) (line, error) {
		return line{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: fmt.Sprintf(format, args...), Next: next}
	}
	text = strings.TrimSpace(text)
	if strings.Contains(text, "PRIVATE KEY") {
		return bad(
			"Make a new pair, because this key has been disclosed, and give the public key from the file that ends "+
				"in .pub.",
			"this is a private key",
		)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return bad("Give one key at a time.", "a key must be one line without control characters")
	}
	key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
	if err != nil {
		return bad("Give a key such as ssh-ed25519 AAAAC3Nza... name", "this is not a public key of OpenSSH")
	}
	switch k := key.(type) {
	case *ssh.Certificate:
		return bad(
			"Give the key itself, or let an administrator add the authority by hand.",
			"this is a certificate, which sshd does not accept as a key",
		)
	case ssh.CryptoPublicKey:
		if r, ok := k.CryptoPublicKey().(*rsa.PublicKey); ok && r.N.BitLen() < minRSABits {
			return bad("Make one with ssh-keygen -t ed25519.", "the RSA key has %d bits; expected at least %d",
				r.N.BitLen(), minRSABits)
		}
	}
	if strings.HasPrefix(key.Type(), "ssh-dss") {
		return bad("Make one with ssh-keygen -t ed25519.", "DSA keys are too weak, and OpenSSH no longer accepts them")
	}
	return line{text: []byte(text + "\n"), key: key, comment: comment, options: options}, nil
}

// readLines returns the lines of the file, or none if there is no file.
func (f *file) readLines() ([]line, error) {
	info, err := os.Lstat(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &tool.Refusal{Code: tool.CodeUnsupported, Message: f.path() + ": " + errLink.Error()}
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
		return nil, &tool.Refusal{
			Code:    tool.CodeTooLarge,
			Message: fmt.Sprintf("%s has more than %d bytes", f.path(), maxFile),
		}
	}
	return parseLines(text), nil
}

// changeLines reads, changes and replaces the file. A file lock serialises the changes
// of all hosts.
func (f *file) changeLines(how func([]line) ([]line, error)) error {
	unlock, err := atomicfile.Lock(f.path() + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	all, err := f.readLines()
	if err != nil {
		return err
	}
	if all, err = how(all); err != nil {
		return err
	}
	if len(all) > maxKeys {
		return tool.Refuse(tool.CodeTooLarge, "the file has %d lines, which is the limit", len(all)-1)
	}
	var text []byte
	for i, l := range all {
		text = append(text, l.text...)
		if !bytes.HasSuffix(l.text, []byte("\n")) && i < len(all)-1 {
			text = append(text, '\n')
		}
	}
	if len(text) > maxFile {
		return tool.Refuse(tool.CodeTooLarge, "%s would have more than %d bytes", f.path(), maxFile)
	}
	return atomicfile.Write(f.path(), text)
}
