package sshkeys

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"gatehouse/module"
	"gatehouse/module/moduletest"
)

// admin calls the tools of one module on a folder of its own.
type admin struct {
	t      *testing.T
	folder string
	module module.Module
}

func enter(t *testing.T) *admin {
	t.Helper()
	a := &admin{t: t, folder: filepath.Join(t.TempDir(), "home", ".ssh")}
	m, err := New(Config{Folder: a.folder})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	a.module = m
	return a
}

// ask calls a tool for a person who agrees to everything.
func (a *admin) ask(name string, into any, args ...any) string {
	a.t.Helper()
	return a.answer(name, moduletest.Accept(map[string]bool{"confirm": true}), into, args...)
}

func (a *admin) answer(name string, answer json.RawMessage, into any, args ...any) string {
	a.t.Helper()
	c := moduletest.NewCall(a.t, args...)
	c.Peer.Answers["confirm"] = answer
	return c.Ask(a.t, a.module, name, into)
}

func (a *admin) file() string { return filepath.Join(a.folder, "authorized_keys") }

func (a *admin) put(text string) {
	a.t.Helper()
	if err := errors.Join(os.MkdirAll(a.folder, 0o700), os.WriteFile(a.file(), []byte(text), 0o644)); err != nil {
		a.t.Fatal(err)
	}
}

func (a *admin) holds(want string) {
	a.t.Helper()
	b, err := os.ReadFile(a.file())
	if err != nil || string(b) != want {
		a.t.Errorf("the file holds\n%s(%v), want\n%s", b, err, want)
	}
	if info, err := os.Stat(a.file()); err == nil && info.Mode().Perm()&0o022 != 0 && runtime.GOOS != "windows" {
		a.t.Errorf("others may write it: %v", info.Mode())
	}
}

// newKey makes a public key as ssh-keygen writes it, without its end.
func newKey(t testing.TB) (string, ssh.PublicKey) {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), key
}

func TestKeysAreAddedListedAndRemoved(t *testing.T) {
	a := enter(t)
	var all listOut
	if refused := a.ask("ssh_list", &all); refused != "" || len(all.Keys) != 0 || all.File != a.file() {
		t.Fatal(all, refused)
	}
	one, key := newKey(t)
	var added keyOut
	if refused := a.ask("ssh_add", &added, "key", "  "+one+" ann@home \n"); refused != "" ||
		added.Fingerprint != ssh.FingerprintSHA256(
			key,
		) || added.Hostname != "ann@home" || added.Line != 1 || added.Alg != "ssh-ed25519" {
		t.Fatal(added, refused)
	}
	a.holds(one + " ann@home\n")
	if info, err := os.Stat(a.folder); err != nil || info.Mode().Perm() != 0o700 && runtime.GOOS != "windows" {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
	if refused := a.ask("ssh_add", nil, "key", one+" again"); !strings.HasPrefix(refused, "exists: ") {
		t.Errorf("twice: %q", refused)
	}
	if refused := a.ask("ssh_remove", nil, "fingerprint", ssh.FingerprintLegacyMD5(key)); refused != "" {
		t.Error(refused)
	}
	a.holds("")
	if refused := a.ask("ssh_remove", nil, "fingerprint", ssh.FingerprintSHA256(key)); !strings.HasPrefix(
		refused, "not_found: ",
	) {
		t.Errorf("twice: %q", refused)
	}
}

// What is not meant stays byte for byte: remarks, options, odd spaces, lines
// cannot be read, ends of lines as some editors write them.
func TestOtherLinesStayAsTheyAre(t *testing.T) {
	a := enter(t)
	one, first := newKey(t)
	two, second := newKey(t)
	three, _ := newKey(t)
	before := "# the home\r\n\n\t" + one + "  ann  \n"
	doomed := `restrict,command="echo \"a b\"" ` + two + " bob\n" + two + "\n"
	after := "what is this\nfrom=\"10.0.0.0/8,!10.1.0.0/16\",no-pty " + three + " carol" // without an end
	a.put(before + doomed + after)
	var all listOut
	if a.ask("ssh_list", &all); len(all.Keys) != 4 || all.Other != 1 || len(all.Keys[1].Options) != 2 ||
		all.Keys[1].Options[1] != `command="echo \"a b\""` || all.Keys[3].Line != 7 {
		t.Errorf("got %+v", all)
	}
	var gone removeOut
	if refused := a.ask("ssh_remove", &gone, "fingerprint", ssh.FingerprintSHA256(second)); refused != "" ||
		gone.Lines != 2 || gone.Left != 2 {
		t.Fatal(gone, refused)
	}
	a.holds(before + after)
	four, _ := newKey(t)
	if refused := a.ask("ssh_add", nil, "key", `command="uptime" `+four); refused != "" {
		t.Fatal(refused)
	}
	a.holds(before + after + "\n" + `command="uptime" ` + four + "\n")
	if refused := a.ask("ssh_remove", nil, "fingerprint", "MD5:"+ssh.FingerprintLegacyMD5(first)); refused != "" {
		t.Fatal(refused)
	}
	a.holds("# the home\r\n\n" + after + "\n" + `command="uptime" ` + four + "\n")
}

//redteam:attack Keys of SSH are the administration's: a key is added without a yes
func TestNobodyIsLetInWithoutAYes(t *testing.T) {
	a := enter(t)
	one, key := newKey(t)
	if refused := a.answer("ssh_add", moduletest.Decline(), nil, "key", one); !strings.HasPrefix(
		refused, "declined: ",
	) {
		t.Errorf("got %q", refused)
	}
	if _, err := os.Stat(a.file()); err == nil {
		t.Error("there is a file")
	}
	a.put(one + "\n")
	if refused := a.answer("ssh_remove", moduletest.Decline(), nil, "fingerprint",
		ssh.FingerprintSHA256(key)); !strings.HasPrefix(
		refused,
		"declined: ",
	) {
		t.Errorf("got %q", refused)
	}
	a.holds(one + "\n")
}

func TestKeysThatAreRefused(t *testing.T) {
	a := enter(t)
	one, _ := newKey(t)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	short, err := ssh.NewPublicKey(&weak.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert := &ssh.Certificate{Key: signer.PublicKey(), CertType: ssh.UserCert, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, signer); err != nil {
		t.Fatal(err)
	}
	for want, key := range map[string]string{
		"this is a private key":       "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----",
		"a key must be one line":      one + "\n" + one,
		"control characters":          one + " \x1b[2J",
		"not a public key of OpenSSH": "ssh-ed25519 AAAA",
		"is not a public key":         "# only a remark",
		"has 1024 bits":               string(ssh.MarshalAuthorizedKey(short)),
		"this is a certificate":       string(ssh.MarshalAuthorizedKey(cert)),
	} {
		if refused := a.ask("ssh_add", nil, "key", key); !strings.HasPrefix(refused, "invalid_arguments: ") ||
			!strings.Contains(refused, want) {
			t.Errorf("got %q, want %q", refused, want)
		}
	}
	if _, err := os.Stat(a.file()); err == nil {
		t.Error("there is a file")
	}
}

func TestLinksAndLargeFilesAreLeftAlone(t *testing.T) {
	a := enter(t)
	one, _ := newKey(t)
	elsewhere := filepath.Join(t.TempDir(), "keys")
	if err := errors.Join(os.MkdirAll(a.folder, 0o700), os.WriteFile(elsewhere, nil, 0o600),
		os.Symlink(elsewhere, a.file())); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ssh_list", "ssh_add"} {
		if refused := a.ask(name, nil, "key", one); !strings.Contains(refused, "change it by hand") {
			t.Errorf("%s: %q", name, refused)
		}
	}
	if err := os.Remove(a.file()); err != nil {
		t.Fatal(err)
	}
	a.put(strings.Repeat("# remark\n", maxFile/9+1))
	if refused := a.ask("ssh_list", nil); !strings.HasPrefix(refused, "too_large: ") {
		t.Errorf("got %q", refused)
	}
}

// Keys that are added at the same moment are all there.
func TestChangesDoNotLoseEachOther(t *testing.T) {
	a := enter(t)
	var all sync.WaitGroup
	for range 8 {
		one, _ := newKey(t)
		all.Go(func() {
			f := &file{a.folder}
			if err := f.changeLines(func(lines []line) ([]line, error) {
				l, err := parseNew(one)
				return append(lines, l), err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var out listOut
	if a.ask("ssh_list", &out); len(out.Keys) != 8 || out.Other != 0 {
		t.Errorf("got %d keys", len(out.Keys))
	}
}

func FuzzFile(f *testing.F) {
	one, _ := newKey(f)
	f.Add([]byte("# a\r\n\n" + one + " x\nno-pty,command=\"a \\\" b\" " + one))
	f.Add([]byte("ssh-rsa AAAA\n\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var whole []byte
		for _, l := range parseLines(text) {
			whole = append(whole, l.text...)
		}
		if !bytes.Equal(whole, text) {
			t.Errorf("%q became %q", text, whole)
		}
		if l, err := parseNew(string(text)); err == nil {
			if again := parseLines(l.text); len(again) != 1 || !again[0].is(l.key) {
				t.Errorf("%q is added as %d lines", text, len(again))
			}
		}
	})
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	folder := t.TempDir() // and not this machine's
	moduletest.Run(t, New(Config{Folder: folder}), moduletest.Options{})
}
