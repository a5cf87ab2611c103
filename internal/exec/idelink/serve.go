package idelink

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/coder/websocket"

	"gatehouse/internal/exec/rpc"
)

// maxAgents is how many agents may be connected at once.
const maxAgents = 16

// Server is an editor for agents on this machine.
type Server struct {
	Lock
	// Accept is called for each agent before its first message, and returns what answers it. gone is called when it
	// has disconnected.
	Accept func(agent *rpc.Conn) (gone func())
	// Handler answers the messages of agents. agent is the one that sent the message.
	Handler func(agent func() *rpc.Conn) rpc.Handler

	listener net.Listener
	places   chan struct{}
	agents   sync.WaitGroup
}

// Listen opens a port on loopback and writes the lock file. Folders and Editor of the Lock have to
// be set. Serve must be called then.
func (s *Server) Listen(dir string) error {
	secret := make([]byte, 16)
	rand.Read(secret) // never fails
	s.Token, s.PID, s.Transport, s.places = hex.EncodeToString(
		secret,
	), os.Getpid(), "ws", make(chan struct{}, maxAgents)
	var err error
	if s.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return err
	}
	s.Port = s.listener.Addr().(*net.TCPAddr).Port
	if err = s.write(dir); err != nil {
		s.listener.Close()
	}
	return err
}

// write writes the lock file under another name first, so that no agent reads half of it.
func (s *Server) write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := private(dir, true); err != nil {
		return fmt.Errorf("the folder of lock files %s cannot be used: %w", dir, err)
	}
	b, err := json.Marshal(s.Lock)
	if err != nil {
		return err
	}
	s.Path = filepath.Join(dir, strconv.Itoa(s.Port)+".lock")
	f, err := os.CreateTemp(dir, ".lock-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), s.Path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Serve serves agents until ctx is done, and removes the lock file.
func (s *Server) Serve(ctx context.Context) error {
	defer os.Remove(s.Path)
	web := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.agent(ctx, w, r) }),
		ReadHeaderTimeout: handshake, MaxHeaderBytes: 16 << 10, IdleTimeout: handshake,
	}
	stop := context.AfterFunc(ctx, func() { web.Close() })
	defer stop()
	err := web.Serve(s.listener)
	s.agents.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// refused returns why a request may not connect, with its status. Pages of browsers send Origin and cannot send the
// header with the secret; a page that has another name for this address sends that as Host.
func (s *Server) refused(r *http.Request) (int, string) {
	host, _, err := net.SplitHostPort(r.Host)
	switch {
	case err != nil || host != "127.0.0.1" && host != "localhost":
		return http.StatusForbidden, "the Host of the request is not this machine"
	case r.Header.Get("Origin") != "":
		return http.StatusForbidden, "pages of browsers may not connect"
	case len(r.Header.Values(header)) != 1 ||
		subtle.ConstantTimeCompare([]byte(r.Header.Get(header)), []byte(s.Token)) != 1:
		return http.StatusUnauthorized, "the header " + header + " must have the authToken of the lock file"
	}
	return 0, ""
}

// agent serves one agent until it disconnects or ctx is done: the context of the request does not end with the server.
func (s *Server) agent(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	if status, why := s.refused(r); status != 0 {
		http.Error(w, why, status)
		return
	}
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		http.Error(w, "too many agents are connected", http.StatusServiceUnavailable)
		return
	}
	s.agents.Add(1)
	defer s.agents.Done()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}})
	if err != nil {
		return
	}
	var c *rpc.Conn
	ready := make(chan struct{})
	c = connect(conn, s.Handler(func() *rpc.Conn { <-ready; return c }))
	close(ready)
	gone := s.Accept(c)
	defer gone()
	select {
	case <-c.Done():
	case <-ctx.Done():
	}
	c.Close()
}
