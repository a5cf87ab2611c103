// Package sshkeys is the module with which an administrator manages the SSH keys
// that may log in as the host's user.
//
// Only the administration context has it, because a key gives access to a shell,
// which the rules of this host do not restrict. Changes are atomic, and every
// other line stays byte for byte.
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

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		k := &keys{folder: cfg.Folder}
		k.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "ssh_list", Title: "List SSH keys", Effects: tool.Reads, Task: tool.TaskNever,
				Aliases:     []string{"ssh.list"},
				Description: "Lists the keys that may log in by SSH as the user this host runs as.",
				Help: "It reads .ssh/authorized_keys in that user's home. other is the number of lines that " +
					"are neither keys nor comments.",
			}, k.listKeys),
			tool.New(tool.Def{
				Name: "ssh_add", Title: "Add an SSH key", Effects: tool.Writes, Task: tool.TaskNever,
				Aliases: []string{"ssh.add"},
				Description: "Allows a public key to log in by SSH as the user this host runs as, after the user " +
					"has agreed.",
				Help: "key is one line as ssh-keygen writes it to a .pub file, optionally with options in " +
					"front. DSA keys, and RSA keys below 2048 bits, are refused. " + confirmHelp,
			}, k.addKey),
			tool.New(tool.Def{
				Name: "ssh_remove", Title: "Remove an SSH key", Effects: tool.Writes | tool.Destroys,
				Task: tool.TaskNever, Aliases: []string{"ssh.remove"},
				Description: "Removes a key, so that it can no longer log in by SSH, after the user has agreed. " +
					"Open SSH sessions stay open.",
				Help: "All lines with that key are removed; every other line stays as it is. " + confirmHelp,
			}, k.removeKey),
		}
		return k, nil
	}
}

const confirmHelp = "The client asks the user. If it cannot ask, ask the user yourself and give the fingerprint as " +
	"confirm."

// Offer implements module.Module.
func (k *keys) Offer(context.Context, module.Audience) (*module.Offer, error) { return &k.offer, nil }

// Close implements module.Module.
func (k *keys) Close(context.Context) error { return nil }

// file returns the authorized_keys file of the host's user. It takes the home
// directory from the user database, because sshd does not use HOME either.
func (k *keys) file() (*file, error) {
	folder := k.folder
	if folder == "" {
		me, err := user.Current()
		if err != nil || !filepath.IsAbs(me.HomeDir) {
			return nil, &tool.Refusal{Code: tool.CodeUnsupported,
				Message: "the user this host runs as has no home directory"}
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
	MD5         string   `json:"md5" doc:"the fingerprint in its old format"`
	Hostname    string   `json:"hostname,omitempty" doc:"comment of the key, often its owner"`
	Options     []string `json:"options,omitempty"`
	Line        int      `json:"line,omitempty"`
}

func newKeyOut(l line, number int) keyOut {
	return keyOut{
		l.key.Type(), ssh.FingerprintSHA256(l.key), ssh.FingerprintLegacyMD5(l.key), l.comment, l.options, number,
	}
}

func (k *keys) listKeys(context.Context, *tool.Call, struct{}) (listOut, error) {
	out := listOut{Keys: []keyOut{}}
	f, err := k.file()
	if err != nil {
		return out, err
	}
	out.File = f.path()
	all, err := f.readLines()
	if err != nil {
		return out, err
	}
	for i, l := range all {
		switch {
		case l.key != nil:
			out.Keys = append(out.Keys, newKeyOut(l, i+1))
		case !l.isComment():
			out.Other++
		}
	}
	return out, nil
}

type addIn struct {
	Key     string `json:"key" doc:"a public key, one line" min:"1" max:"16384"`
	Confirm string `json:"confirm,omitempty" doc:"the key's fingerprint, once the user has agreed; needs the setting approvals.callers_word" max:"100"`
}

func (k *keys) addKey(_ context.Context, c *tool.Call, in addIn) (keyOut, error) {
	l, err := parseNew(in.Key)
	if err != nil {
		return keyOut{}, err
	}
	f, err := k.file()
	if err != nil {
		return keyOut{}, err
	}
	print := ssh.FingerprintSHA256(l.key)
	question := "Allow the holder of the key " + print + " (" + displayName(
		l.comment,
	) + ") to log in to this machine by SSH?"
	if err := confirm.Ask(c, print, question, in.Confirm); err != nil {
		return keyOut{}, err
	}
	number := 0
	err = f.changeLines(func(all []line) ([]line, error) {
		for i, other := range all {
			if other.is(l.key) {
				return nil, &tool.Refusal{
					Code:    tool.CodeExists,
					Message: "this key may log in already",
					Next:    "ssh_list shows it at line " + itoa(i+1) + ". To change its options, remove it first.",
				}
			}
		}
		number = len(all) + 1
		return append(all, l), nil
	})
	return newKeyOut(l, number), err
}

type removeIn struct {
	Fingerprint string `json:"fingerprint" doc:"from ssh_list, in either format" min:"1" max:"100"`
	Confirm     string `json:"confirm,omitempty" doc:"the same, once the user has agreed; needs the setting approvals.callers_word" max:"100"`
}

type removeOut struct {
	Removed keyOut `json:"removed"`
	Lines   int    `json:"lines" doc:"number of removed lines"`
	Left    int    `json:"left" doc:"number of keys that may still log in"`
}

func (k *keys) removeKey(_ context.Context, c *tool.Call, in removeIn) (removeOut, error) {
	f, err := k.file()
	if err != nil {
		return removeOut{}, err
	}
	all, err := f.readLines()
	if err != nil {
		return removeOut{}, err
	}
	l, err := findLine(all, in.Fingerprint)
	if err != nil {
		return removeOut{}, err
	}
	question := "Remove the key " + in.Fingerprint + " (" + displayName(l.comment) + "), so that it can no longer " +
		"log in to this machine by SSH?"
	if err := confirm.Ask(c, in.Fingerprint, question, in.Confirm); err != nil {
		return removeOut{}, err
	}
	out := removeOut{Removed: newKeyOut(l, 0)}
	err = f.changeLines(func(all []line) (left []line, err error) {
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
			return nil, errNotFound(in.Fingerprint)
		}
		return left, nil
	})
	return out, err
}

func findLine(all []line, fingerprint string) (line, error) {
	want := strings.TrimPrefix(strings.TrimSpace(fingerprint), "MD5:")
	for _, l := range all {
		if l.key != nil && (ssh.FingerprintSHA256(l.key) == want || ssh.FingerprintLegacyMD5(l.key) == want) {
			return l, nil
		}
	}
	return line{}, errNotFound(fingerprint)
}

func errNotFound(fingerprint string) error {
	return &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: "no key has the fingerprint " + displayName(fingerprint),
		Next:    "ssh_list lists the keys.",
	}
}

// displayName returns untrusted text in a form that can be shown to a user.
func displayName(s string) string {
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

var errLink = errors.New("it is a link or not a regular file, which this host does not replace: change it by hand")
