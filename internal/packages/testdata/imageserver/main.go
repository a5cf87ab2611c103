// Command imageserver is an MCP server for the tests of images: its one tool tells how it was started.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "drop":
			drop()
		case "third":
			third()
		}
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var q struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Arguments struct{ Make string }
			}
		}
		if json.Unmarshal(in.Bytes(), &q) != nil || q.ID == nil {
			continue
		}
		answer := `"error":{"code":-32601,"message":"no such method"}`
		switch q.Method {
		case "initialize":
			answer = `"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"i","version":"1"}}`
		case "tools/list":
			answer = `"result":{"tools":[{"name":"about","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			if made := q.Params.Arguments.Make; made != "" {
				os.WriteFile(made, nil, 0o644)
				os.Chown(made, owner, owner)
			}
			text, _ := json.Marshal(about())
			answer = `"result":{"content":[{"type":"text","text":` + string(text) + `}]}`
		}
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n", q.ID, answer)
	}
}

// Users of the start of a database: the one that owns the volume and answers, and one of a second process.
const (
	owner  = 999
	second = 998
)

// drop is the start of an image such as that of a database: as root it gives the volume and a folder of the image to a
// user, changes a file of the image, starts a process of another user, and goes on as the first user.
func drop() {
	check(os.Chown("/app", owner, owner), nil)
	check(os.WriteFile("/etc/passwd", []byte("first:x:999:999::/:/bin/sh\n"), 0o644), nil)
	check(os.Mkdir("/state/private", 0o700), fs.ErrExist)
	check(os.WriteFile("/state/private/own", []byte("x"), 0o600), nil)
	check(filepath.WalkDir("/state", func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, owner, owner))
	}), nil)
	c := exec.Command(os.Args[0], "third")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: second, Gid: second}}
	c.Stderr = os.Stderr
	check(c.Start(), nil)
	check(syscall.Setgroups([]int{owner}), nil)
	check(syscall.Setgid(owner), nil)
	check(syscall.Setuid(owner), nil)
	check(syscall.Exec(os.Args[0], []string{os.Args[0], "dropped"}, os.Environ()), nil)
}

// third tells what it can do in files, which it makes in the folder for temporary files, and stays.
func third() {
	_, err := os.ReadFile("/state/private/own")
	status, _ := os.ReadFile("/proc/self/status")
	text := fmt.Sprintf("uid=%d denied=%t", os.Getuid(), errors.Is(err, fs.ErrPermission))
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "CapEff") {
			text += " " + strings.TrimSpace(line)
		}
	}
	check(os.WriteFile("/tmp/secret", []byte("x"), 0o600), nil)
	check(os.WriteFile("/tmp/third.new", []byte(text), 0o644), nil)
	check(os.Rename("/tmp/third.new", "/tmp/third"), nil)
	select {}
}

func check(err, but error) {
	if err != nil && !errors.Is(err, but) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dropped tells what became of drop.
func dropped() string {
	var text []byte
	for range 1000 {
		var err error
		if text, err = os.ReadFile("/tmp/third"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	_, err := os.ReadFile("/tmp/secret")
	var st syscall.Stat_t
	syscall.Stat("/state/private/own", &st)
	own := os.WriteFile("/state/private/own", []byte("y"), 0o600)
	return fmt.Sprintf(" third=%s secret=%t own=%d:%t uid=%d", text, err == nil, st.Uid, own == nil, os.Getuid())
}

// about tells the arguments, the folder and the variables, what is in the volume, and what can be written.
func about() string {
	dir, _ := os.Getwd()
	var s strings.Builder
	fmt.Fprintf(&s, "args=%v dir=%s home=%s kind=%s path=%s\n", os.Args[1:], dir, os.Getenv("HOME"), os.Getenv("KIND"),
		os.Getenv("PATH"))
	seed, _ := os.ReadFile("/state/seed")
	fmt.Fprintf(&s, "seed=%s", seed)
	for _, path := range []string{"/app/made", "/state/made", "/home/user/made", "/tmp/made"} {
		_, before := os.Stat(path)
		err := os.WriteFile(path, []byte("x"), 0o600)
		fmt.Fprintf(&s, " %s:%t:%t", path, before == nil, err == nil)
	}
	users, _ := os.ReadFile("/etc/passwd")
	fmt.Fprintf(&s, " first=%t", strings.HasPrefix(string(users), "first:"))
	if len(os.Args) > 1 && os.Args[1] == "dropped" {
		return s.String() + dropped()
	}
	fmt.Fprintf(&s, " none=%t", errors.Is(os.Chown("/tmp/none", 7, 7), fs.ErrNotExist))
	fmt.Fprintf(&s, " chown=%t", os.Chown("/tmp/made", 7, 7) == nil)
	fmt.Fprintf(&s, " users=%t", syscall.Setgroups([]int{7}) == nil && syscall.Setgid(7) == nil && syscall.Setuid(7) == nil)
	var made syscall.Stat_t
	syscall.Stat("/tmp/made", &made)
	fmt.Fprintf(&s, " same=%t:%t", int(made.Uid) == os.Getuid(), os.Getuid() != 7)
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if word, value, _ := strings.Cut(line, ":"); word == "CapEff" || word == "CapPrm" || word == "Groups" {
			fmt.Fprintf(&s, " %s=%s;", word, strings.TrimSpace(value))
		}
	}
	for path := range strings.FieldsSeq(os.Getenv("LOOK")) {
		_, err := os.Stat(path)
		fmt.Fprintf(&s, " %s=%t", path, err == nil)
	}
	return s.String()
}
