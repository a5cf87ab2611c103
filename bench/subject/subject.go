// Package subject is what every program that is measured has in common: how
// it is told what to serve, how it says that it is ready, and how it accounts
// for what it has used.
//
// A subject serves as long as its standard input is open, which is how it ends
// with the driver. It answers for itself on a Unix socket of its own, so that
// being watched costs nothing while it is being loaded.
package subject

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
)

// Task is what a subject is told to do.
type Task struct {
	HTTP    string // address to serve HTTP on; "" keeps the door closed
	Unix    string // path of a socket to serve lines on; "" keeps it closed
	Stdio   bool   // serve lines on standard input and output
	Control string // path of the socket to answer for itself on
	Tools   int    // to register, the first of them called echo
	Flood   bool   // register a tool of that name that streams 100 MB
}

// Parse reads the task from the command line.
func Parse() Task {
	var t Task
	flag.StringVar(&t.HTTP, "http", "", "serve HTTP on this address")
	flag.StringVar(&t.Unix, "unix", "", "serve lines on a Unix socket at this path")
	flag.BoolVar(&t.Stdio, "stdio", false, "serve lines on standard input and output")
	flag.StringVar(&t.Control, "control", "", "answer for itself on a Unix socket at this path")
	flag.IntVar(&t.Tools, "tools", 1, "how many tools to register")
	flag.BoolVar(&t.Flood, "flood", false, "register a tool that streams 100 MB")
	flag.Parse()
	return t
}

// Echo is the argument of the tool.
type Echo struct {
	Text string `json:"text" doc:"what to say" jsonschema:"what to say"`
}

// Description of every tool.
const Description = "Says the text again."

// Names are the names of the tools to register.
func (t Task) Names() []string {
	names := []string{"echo"}
	for i := 1; i < t.Tools; i++ {
		names = append(names, "echo_"+strconv.Itoa(i))
	}
	return names
}

// Server are how a subject serves what it is told to; nil where it cannot.
type Server struct {
	HTTP  *http.Server
	Serve func(net.Listener) error       // instead of HTTP, for a subject that serves a listener itself
	Lines func(io.ReadWriteCloser) error // one client of lines, until it leaves
	Unix  func(path string) error        // instead of Lines, for a subject that listens itself
	Stdio func() error                   // likewise
	Extra map[string]func(arg string) error
}

// Run serves until standard input ends and ends the process.
func (t Task) Run(d Server) {
	log.SetFlags(0)
	if err := t.run(d); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

func (t Task) run(d Server) error {
	if t.Control != "" {
		if err := control(t.Control, d.Extra); err != nil {
			return err
		}
	}
	failed := make(chan error, 3)
	if t.HTTP != "" {
		if d.HTTP == nil && d.Serve == nil {
			return errors.New("this subject does not serve HTTP")
		}
		ln, err := net.Listen("tcp", t.HTTP)
		if err != nil {
			return err
		}
		serve := d.Serve
		if serve == nil {
			serve = d.HTTP.Serve
		}
		go func() { failed <- serve(ln) }()
		ready(ln.Addr().String())
	}
	if t.Unix != "" {
		if err := d.openUnix(t.Unix, failed); err != nil {
			return err
		}
		ready(t.Unix)
	}
	if t.Stdio {
		return d.stdio()
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		failed <- nil
	}()
	return <-failed
}

// ready tells the driver where to knock.
func ready(address string) {
	b, err := json.Marshal(struct {
		Ready string `json:"ready"`
		PID   int    `json:"pid"`
	}{address, os.Getpid()})
	if err != nil {
		panic(err) // strings only
	}
	fmt.Println(string(b))
}

func (d Server) openUnix(path string, failed chan<- error) error {
	if d.Unix != nil {
		go func() { failed <- d.Unix(path) }()
		return nil
	}
	if d.Lines == nil {
		return errors.New("this subject does not serve a Unix socket")
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				failed <- err
				return
			}
			go d.Lines(conn)
		}
	}()
	return nil
}

func (d Server) stdio() error {
	switch {
	case d.Stdio != nil:
		return d.Stdio()
	case d.Lines != nil:
		return d.Lines(pipes{})
	}
	return errors.New("this subject does not serve standard input and output")
}

// pipes are standard input and output.
type pipes struct{}

func (pipes) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (pipes) Write(b []byte) (int, error) { return os.Stdout.Write(b) }
func (pipes) Close() error                { return os.Stdin.Close() }
