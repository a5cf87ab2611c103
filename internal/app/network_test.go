package app

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A forward of a complete host relays connections, belongs to its creator, and ends with the host.
func TestAForwardEndsWithItsHost(t *testing.T) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	go func() {
		for {
			c, err := target.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	a, stop := started(t, ruled(t, "net"))
	admin, eve := tenantOf(t, a, "ann", "admin"), tenantOf(t, a, "eve")
	args := fmt.Sprintf(`"target":%q`, target.Addr())
	if got := fmt.Sprint(eve.result("net_forward_start", `{`+args+`,"listen":"0.0.0.0:0"}`)); !strings.Contains(
		got,
		"denied",
	) {
		t.Errorf("eve opens a port to the network: %s", got)
	}
	made := admin.result("net_forward_start", `{`+args+`}`)
	at, _ := made["listen"].(string)
	read := func() (string, error) {
		c, err := net.DialTimeout("tcp", at, 30*time.Second)
		if err != nil {
			return "", err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(30 * time.Second))
		b, err := io.ReadAll(c)
		return string(b), err
	}
	if got, err := read(); got != "hello" {
		t.Fatalf("%v: got %q, %v", made, got, err)
	}
	if got := eve.result("net_forward_stop", fmt.Sprintf(`{"id":%q}`, made["id"])); !strings.Contains(
		fmt.Sprint(got),
		"not_found",
	) {
		t.Errorf("eve ends it: %v", got)
	}
	if got := eve.result("net_acme_status", `{}`); got["on"] != false {
		t.Errorf("got %v", got)
	}
	stop()
	if got, err := read(); err == nil && got != "" {
		t.Errorf("it goes on: %q", got)
	}
}
