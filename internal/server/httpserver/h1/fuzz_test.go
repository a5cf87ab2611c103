package h1

import (
	"bufio"
	"bytes"
	"io"
	nethttp "net/http"
	"reflect"
	"strings"
	"testing"
)

// A plain request is parsed as net/http parses it, whatever was read before.
func FuzzRead(f *testing.F) {
	const usual = "POST /mcp HTTP/1.1\r\nHost: localhost:3000\r\nContent-Type: application/json\r\n" +
		"Content-Length: 2\r\nMcp-Session-Id: abc\r\n\r\n{}"
	f.Add([]byte(usual), []byte(usual))
	f.Add(
		[]byte(usual),
		[]byte(strings.NewReplacer("abc", "another", ": 2", ": 13", "{}", `{"id":"12345"}`).Replace(usual)),
	)
	f.Add(
		[]byte(usual),
		[]byte("POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 0002\r\nConnection: close\r\n\r\n{}POST /"),
	)
	f.Add(
		[]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nX: 1\r\n\r\n1"),
		[]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nX: 1\r\nContent-Length: 2\r\n\r\n12"),
	)
	f.Add(
		[]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n1"),
		[]byte("POST / HTTP/1.1\r\nHost:\r\nContent-Length: 1\r\n \r\n\r\n1"),
	)
	f.Fuzz(func(t *testing.T, before, b []byte) {
		var unused, used reader
		used.readRequestHead(before)
		h, v := unused.readRequestHead(b)
		again, av := used.readRequestHead(b)
		if v != av || !reflect.DeepEqual(h, again) {
			t.Fatalf("%q is %d %+v, and after %q %d %+v", b, v, h, before, av, again)
		}
		unused = reader{}
		first, fv := unused.readRequestHead(before)
		if last, lv := used.readRequestHead(before); lv != fv || !reflect.DeepEqual(last, first) {
			t.Fatalf("%q is %d %+v, and after %q %d %+v", before, fv, first, b, lv, last)
		}
		if v != plain {
			return
		}
		in := bufio.NewReader(bytes.NewReader(b))
		r, err := nethttp.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q is plain here, and for net/http %v", b, err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(in)
		r.Header.Del("Content-Length")
		if string(body) != string(b[h.size:h.size+h.length]) || string(rest) != string(b[h.size+h.length:]) {
			t.Fatalf("the body of %q is %q here, and for net/http %q", b, b[h.size:h.size+h.length], body)
		}
		if r.Method != "POST" || r.URL.Path != h.path || r.RequestURI != h.path || r.Host != h.host ||
			r.Close != h.closes ||
			!reflect.DeepEqual(r.Header, h.header) {
			t.Fatalf("%q is %+v here, and for net/http %+v", b, h, r)
		}
	})
}
