package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

// serve runs outside of sandboxes as a server of another process. It prints its address, answers one request on each
// connection with the requested Host, and ends when its input ends. It prints a line when a request for /long
// begins, which it does not answer. It imports net and not net/http, because the probe must fit on small disks.
func serve(say func(name, got string), _ []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		say("error", err.Error())
		return
	}
	say("address", l.Addr().String())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerOne(say, c)
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}

func answerOne(say func(name, got string), c net.Conn) {
	defer c.Close()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	text := "served " + r.Host
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n")
	if r.URL.Path != "/long" {
		fmt.Fprintf(c, "Content-Length: %d\r\n\r\n%s", len(text), text)
		return
	}
	fmt.Fprintf(c, "\r\n%s", text)
	say("begun", r.Host)
	io.Copy(io.Discard, c) // until the other side is gone
}
