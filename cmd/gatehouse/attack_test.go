package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// attack runs one story of testdata/attack. The stories are attacks on a whole
// host that runs as a process of its own.
func attack(t *testing.T, name string) {
	testscript.Run(t, params(t, "", "testdata/attack/"+name+".txt"))
}

//redteam:attack Children never answer: a wrong passphrase, none, one from a pipe, and a yes by a shell of the client itself
//redteam:attack Children never answer: a shell of the client itself removes the passphrase, or sets its own, while the host runs
func TestOnlyThePassphraseApproves(t *testing.T) { attack(t, "passphrase") }

//redteam:attack Children never answer: the approval command by a shell, by a terminal, after a double fork, detached, and over the Unix socket
//redteam:attack Children never answer: the same where the settings open the host's files to children
func TestAChildOfTheHostApprovesNothing(t *testing.T) { attack(t, "children") }

//redteam:attack Children never answer: without a passphrase a shell of the client itself says yes, and nothing says so
func TestAYesWithoutPassphraseIsCalledSo(t *testing.T) { attack(t, "sameaccount") }

//redteam:attack Children are kept from the host's own files: children of a host of a real ordinary user, which has Landlock alone
//redteam:attack A package's server is a stranger: a child of an ordinary user's host forks without limit, each in a session of its own
func TestAnOrdinaryUsersHost(t *testing.T) { attack(t, "ordinary") }

//redteam:attack What destroys is written down before it begins: a host of users starts, calls and is called on a disk that can only be read, or is full
//redteam:attack One principal, however it comes: a host starts on such a disk, and one whose file of users is lost, and is called without credentials
func TestADiskThatCannotBeWritten(t *testing.T) { attack(t, "degraded") }

// ordinary makes a user of this machine until the story ends, with the home $WORK/user
// and a folder of its own. The script "as" then runs a command as that user, and the
// file "uid" holds its number.
func ordinary(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ordinary FOLDER")
	}
	work := ts.Getenv("WORK")
	name := fmt.Sprintf("ghtest%d", os.Getpid())
	home := filepath.Join(work, "user")
	if out, err := exec.Command("useradd", "--no-create-home", "--home-dir", home, "--shell",
		"/bin/sh", name).CombinedOutput(); err != nil {
		ts.Fatalf("useradd: %v: %s", err, out)
	}
	ts.Defer(func() { exec.Command("userdel", name).Run() })
	u, err := user.Lookup(name)
	ts.Check(err)
	uid, err := strconv.Atoi(u.Uid)
	ts.Check(err)
	gid, err := strconv.Atoi(u.Gid)
	ts.Check(err)
	program, err := os.ReadFile(find(ts, "gatehouse"))
	ts.Check(err)
	ts.Check(os.Mkdir(filepath.Join(work, "ubin"), 0o755))
	ts.Check(os.WriteFile(filepath.Join(work, "ubin", "gatehouse"), program, 0o755))
	for _, dir := range []string{home, filepath.Join(work, "urun")} {
		ts.Check(os.Mkdir(dir, 0o700))
		ts.Check(os.Chown(dir, uid, gid))
	}
	ts.Check(os.Chown(ts.MkAbs(args[0]), uid, gid))
	// The user has to get to the story's folder.
	for up := work; len(up) > len(os.TempDir()); up = filepath.Dir(up) {
		ts.Check(os.Chmod(up, 0o755))
	}
	script := fmt.Sprintf(
		"#!/bin/sh\nexec setpriv --reuid=%d --regid=%d --clear-groups env -i HOME=%s XDG_RUNTIME_DIR=%s/urun "+
			"TMPDIR=%[3]s PATH=%[4]s/ubin:/usr/bin:/bin \"$@\"\n",
		uid,
		gid,
		home,
		work,
	)
	ts.Check(os.WriteFile(filepath.Join(work, "as"), []byte(script), 0o755))
	ts.Check(os.WriteFile(filepath.Join(work, "uid"), []byte(u.Uid), 0o644))
}
