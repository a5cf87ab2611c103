// Command imageserver is an MCP server for the tests of images: its one tool tells how it was started.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var q struct {
			ID     json.RawMessage
			Method string
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
			text, _ := json.Marshal(about())
			answer = `"result":{"content":[{"type":"text","text":` + string(text) + `}]}`
		}
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n", q.ID, answer)
	}
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
