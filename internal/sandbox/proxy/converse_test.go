package proxy

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// converse says b to a proxy that allows example.org alone.
func converse(t *testing.T, b []byte) {
	p := New(Options{
		Limits: Limits{Handshake: time.Second, Idle: time.Second, Answer: time.Second},
		Own:    func() []netip.Addr { return nil },
		Dial: func(_ context.Context, at netip.AddrPort) (net.Conn, error) {
			if at.Addr() != netip.MustParseAddr(public) || at.Port() != 80 && at.Port() != 443 {
				t.Errorf("dialled %s", at)
			}
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				go io.Copy(io.Discard, there)
				io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}()
			return here, nil
		},
	})
	defer p.Close()
	if err := p.Set(sandbox.Network{
		Allow:   []string{"example.org"},
		Resolve: names{"": {"127.0.0.1"}, "example.org": {public}},
	}); err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	done := make(chan bool)
	go func() {
		defer close(done)
		defer there.Close()
		p.serveConn(there)
	}()
	go io.Copy(io.Discard, here)
	here.SetDeadline(time.Now().Add(patience))
	here.Write(b)
	here.Close()
	<-done
}
