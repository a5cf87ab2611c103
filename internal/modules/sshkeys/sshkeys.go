// Package sshkeys is the module with which an administrator says whose keys
// open the host's user to SSH.
//
// It belongs to the administration context alone: a key opens a shell, which
// no rule of this host reaches. Changes are whole or not made, and every line
// that is not meant stays byte for byte.
package sshkeys

import (
	"context"
	"errors"
	"os/user"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"gatehouse/internal/access/confirm"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// Folder holds authorized_keys; "" means .ssh in the home of the user this
	// process runs as.
	Folder string `json:"-"`
}

type keys struct {
	folder string
	offer  module.Offer
}

// New makes the module.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		k := &keys{folder: cfg.Folder}
		k.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "ssh_list", Title: "List SSH keys", Effects: tool.Reads, Task: tool.TaskNever, Aliases: []string{"ssh.list"},
				Description: "Lists the keys that may log in by SSH as the user this host runs as.",
				Help:        "It reads .ssh/authorized_keys in that user's home. other counts lines that are neither keys nor remarks.",
			}, k.list),
			tool.New(tool.Def{
				Name: "ssh_add", Title: "Add an SSH key", Effects: tool.Writes, Task: tool.TaskNever, Aliases: []string{"ssh.add"},
				Description: "Lets a public key log in by SSH as the user this host runs as, after the person has agreed.",
				Help:        "key is one line as ssh-keygen writes it to a .pub file, with options in front if there are some. DSA and RSA below 2048 bits are refused. " + confirmHelp,
			}, k.add),
			tool.New(tool.Def{
				Name: "ssh_remove", Title: "Remove an SSH key", Effects: tool.Writes | tool.Destroys, Task: tool.TaskNever, Aliases: []string{"ssh.remove"},
				Description: "Lets a key log in by SSH no longer, after the person has agreed. Who is in stays in.",
				Help:        "All lines with that key go; every other line stays as it is. " + confirmHelp,
			}, k.remove),
		}
		return k, nil
	}
}

const confirmHelp = "The person is asked by the client; where it cannot ask, ask them yourself and give the fingerprint as confirm."

// Offer implements module.Module.
func (k *keys) Offer(context.Context, module.Audience) (*module.Offer, error) { return &k.offer, nil }

// Close implements module.Module.
func (k *keys) Close(context.Context) error { return nil }

// file is the file of keys of the host's user, by the system's own word: what
// HOME says is not what sshd reads.
func (k *keys) file() (*file, error) {
	folder := k.folder
	if folder == "" {
		me, err := user.Current()
		if err != nil || !filepath.IsAbs(me.HomeDir) {
			return nil, &tool.Refusal{Code: "unsupported", Message: "the user this host runs as has no home"}
		}
		folder = filepath.Join(me.HomeDir, ".ssh")
	}
	return &file{folder}, nil
}

type listOut struct {
	File  string   `json:"file"`
	Keys  []keyOut `json:"keys"`
	Other int      `json:"other,omitempty"`
}

type keyOut struct {
	Alg         string   `json:"alg"`
	Fingerprint string   `json:"fingerprint"`
	MD5         string   `json:"md5" doc:"the fingerprint in its old form"`
	Hostname    string   `json:"hostname,omitempty" doc:"what is written behind the key, often whose it is"`
	Options     []string `json:"options,omitempty"`
	Line        int      `json:"line,omitempty"`
}

func outOf(l line, number int) keyOut {
	return keyOut{l.key.Type(), ssh.FingerprintSHA256(l.key), ssh.FingerprintLegacyMD5(l.key), l.comment, l.options, number}
}

func (k *keys) list(context.Context, *tool.Call, struct{}) (listOut, error) {
	out := listOut{Keys: []keyOut{}}
	f, err := k.file()
	if err != nil {
		return out, err
	}
	out.File = f.path()
	all, err := f.read()
	if err != nil {
		return out, err
	}
	for i, l := range all {
		switch {
		case l.key != nil:
			out.Keys = append(out.Keys, outOf(l, i+1))
		case !l.remark():
			out.Other++
		}
	}
	return out, nil
}

type addIn struct {
	Key     string `json:"key" doc:"a public key, one line" min:"1" max:"16384"`
	Confirm string `json:"confirm,omitempty" doc:"the key's fingerprint, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"100"`
}

func (k *keys) add(_ context.Context, c *tool.Call, in addIn) (keyOut, error) {
	l, err := parseNew(in.Key)
	if err != nil {
		return keyOut{}, err
	}
	f, err := k.file()
	if err != nil {
		return keyOut{}, err
	}
	print := ssh.FingerprintSHA256(l.key)
	question := "Let whoever has the key " + print + " (" + plain(l.comment) + ") log in to this machine by SSH?"
	if err := confirm.Ask(c, print, question, in.Confirm); err != nil {
		return keyOut{}, err
	}
	number := 0
	err = f.change(func(all []line) ([]line, error) {
		for i, other := range all {
			if other.is(l.key) {
				return nil, &tool.Refusal{Code: "exists", Message: "this key may log in already", Next: "ssh_list shows it, at line " + itoa(i+1) + ". To change its options, remove it first."}
			}
		}
		number = len(all) + 1
		return append(all, l), nil
	})
	return outOf(l, number), err
}

type removeIn struct {
	Fingerprint string `json:"fingerprint" doc:"as ssh_list shows it, of either form" min:"1" max:"100"`
	Confirm     string `json:"confirm,omitempty" doc:"the same, once the person has agreed; counts where the settings let a caller's word stand (approvals.callers_word)" max:"100"`
}

type removeOut struct {
	Removed keyOut `json:"removed"`
	Lines   int    `json:"lines" doc:"that were removed"`
	Left    int    `json:"left" doc:"keys that may still log in"`
}

func (k *keys) remove(_ context.Context, c *tool.Call, in removeIn) (removeOut, error) {
	f, err := k.file()
	if err != nil {
		return removeOut{}, err
	}
	all, err := f.read()
	if err != nil {
		return removeOut{}, err
	}
	l, err := find(all, in.Fingerprint)
	if err != nil {
		return removeOut{}, err
	}
	question := "Let whoever has the key " + in.Fingerprint + " (" + plain(l.comment) + ") log in to this machine by SSH no longer?"
	if err := confirm.Ask(c, in.Fingerprint, question, in.Confirm); err != nil {
		return removeOut{}, err
	}
	out := removeOut{Removed: outOf(l, 0)}
	err = f.change(func(all []line) (left []line, err error) {
		for _, other := range all {
			if other.is(l.key) {
				out.Lines++
				continue
			}
			if other.key != nil {
				out.Left++
			}
			left = append(left, other)
		}
		if out.Lines == 0 {
			return nil, absent(in.Fingerprint)
		}
		return left, nil
	})
	return out, err
}

func find(all []line, fingerprint string) (line, error) {
	want := strings.TrimPrefix(strings.TrimSpace(fingerprint), "MD5:")
	for _, l := range all {
		if l.key != nil && (ssh.FingerprintSHA256(l.key) == want || ssh.FingerprintLegacyMD5(l.key) == want) {
			return l, nil
		}
	}
	return line{}, absent(fingerprint)
}

func absent(fingerprint string) error {
	return &tool.Refusal{Code: "not_found", Message: "no key has the fingerprint " + plain(fingerprint), Next: "ssh_list shows those there are."}
}

// plain is a stranger's text that a person is asked about.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, s)
	if s == "" {
		return "without a name"
	}
	return s[:min(len(s), 100)]
}

var errLink = errors.New("it is a link or no regular file, which this host does not replace: change it by hand")
