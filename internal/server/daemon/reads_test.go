package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
)

// After a crash a call that changes nothing is repeated, and one that may have changed something is
// not.
func TestReadsAreMadeAgainAfterACrash(t *testing.T) {
	reads := map[string]bool{"look": true}
	for _, c := range []struct {
		what, tool  string
		orderly     bool
		know        error
		interrupted bool
	}{
		{what: "a read", tool: "look"},
		{what: "a write", tool: "change", interrupted: true},
		{what: "a tool that is unknown", tool: "other", interrupted: true},
		{what: "nothing known", tool: "look", know: errors.New("no answer"), interrupted: true},
		{what: "a read of a daemon that was stopped", tool: "look", orderly: true, interrupted: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			var lives, ran atomic.Int64
			path, _ := listening(t, About{PID: 1, Build: "b", Ready: true}, func(client net.Conn) {
				first := lives.Add(1) == 1
				in := bufio.NewReader(client)
				for {
					line, err := in.ReadBytes('\n')
					if err != nil {
						return
					}
					id, method, _ := parts(line)
					switch {
					case id == nil:
					case method != "tools/call":
						fmt.Fprintf(
							client,
							`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"v","capabilities":{}}}`+"\n",
							id,
						)
					case ran.Add(1) == 1 && first:
						if outer, ok := client.(*conn); ok && !c.orderly {
							outer.Conn.Close()
						}
						return
					default:
						fmt.Fprintf(client, `{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`+"\n", id)
					}
				}
			})
			f := &Forwarder{Reads: func(context.Context) (map[string]bool, error) {
				if c.know != nil {
					return nil, c.know
				}
				return reads, nil
			}}
			in, out, ended := forward(t, f, path)
			go fmt.Fprintln(in, hello1)
			if line, err := out.ReadString('\n'); !strings.Contains(line, `"id":1`) {
				t.Fatalf("got %s, %v", line, err)
			}
			go fmt.Fprintf(in, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":%q}}`+"\n", c.tool)
			line, err := out.ReadString('\n')
			if err != nil || !strings.Contains(line, `"id":2`) ||
				strings.Contains(line, "interrupted") != c.interrupted {
				t.Errorf("the client receives %s, %v", line, err)
			}
			in.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			want := int64(2)
			if c.interrupted {
				want = 1
			}
			if n := ran.Load(); n != want {
				t.Errorf("it has run %d times, want %d", n, want)
			}
		})
	}
}
