package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"
)

// ErrHalf means that only one of the two files was named.
//
//lint:ignore ST1005 people are told these words
var ErrHalf = errors.New("Both --cert and --key must be provided together")

// lookEvery is the minimum interval between looks for changed files, which happen at connections only.
const lookEvery = time.Second

// stamps identify one state of some files.
type stamps []fs.FileInfo

func stampsOf(paths ...string) (s stamps) {
	for _, p := range paths {
		info, _ := os.Stat(p) // nil if it does not exist
		s = append(s, info)
	}
	return s
}

func (s stamps) equal(o stamps) bool {
	if len(s) != len(o) {
		return false
	}
	for i, a := range s {
		b := o[i]
		if (a == nil) != (b == nil) ||
			a != nil && (!a.ModTime().Equal(b.ModTime()) || a.Size() != b.Size() || !os.SameFile(a, b)) {
			return false
		}
	}
	return true
}

// watchedFiles holds the value that was read from files, and reads it again after they change.
type watchedFiles[T any] struct {
	paths []string
	read  func() (T, error)
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	value  T
	seen   stamps
	looked time.Time
}

// loadFiles reads the files for the first time.
func (w *watchedFiles[T]) loadFiles() error {
	w.seen, w.looked = stampsOf(w.paths...), w.now() // before reading, so that a change in between is noticed next time
	var err error
	w.value, err = w.read()
	return err
}

// current returns the newest value that could be read.
func (w *watchedFiles[T]) current() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if d := now.Sub(w.looked); d >= 0 && d < lookEvery {
		return w.value
	}
	w.looked = now
	seen := stampsOf(w.paths...)
	if seen.equal(w.seen) {
		return w.value
	}
	w.seen = seen
	v, err := w.read()
	if err != nil {
		w.log.Error("cannot use the changed files, the old content stays in use", "files", w.paths, "err", err)
		return w.value
	}
	w.log.Info("read again", "files", w.paths)
	w.value = v
	return v
}

// useFiles uses the certificate of two files.
func (s *Source) useFiles(o Options) error {
	pair := &watchedFiles[*tls.Certificate]{
		paths: []string{o.Cert, o.Key},
		log:   o.Log,
		now:   o.now,
		read: func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.Cert, o.Key)
			if err != nil {
				return nil, fmt.Errorf("certificate %s with key %s: %w", o.Cert, o.Key, err)
			}
			warn(o, c.Leaf)
			return &c, nil
		},
	}
	if err := pair.loadFiles(); err != nil {
		return err
	}
	s.config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.current(), nil }
	s.says = func() []string { return []string{"Using certificate: " + o.Cert} }
	return nil
}

// warn logs problems of files that are usable nevertheless.
func warn(o Options, leaf *x509.Certificate) {
	switch left := leaf.NotAfter.Sub(o.now()); {
	case left < 0:
		o.Log.Warn("the certificate has expired: clients will refuse it", "file", o.Cert, "expired", leaf.NotAfter)
	case left < renewBefore:
		o.Log.Warn("the certificate expires soon", "file", o.Cert, "expires", leaf.NotAfter)
	}
	if info, err := os.Stat(o.Key); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0 {
		o.Log.Warn("every user of this machine can read the key: run chmod o-rwx on it", "file", o.Key)
	}
}

// askClients lets clients send certificates signed by an authority in a file.
func (s *Source) askClients(o Options) error {
	base := s.config.Clone()
	trusted := &watchedFiles[*tls.Config]{
		paths: []string{o.ClientCA},
		log:   o.Log,
		now:   o.now,
		read: func() (*tls.Config, error) {
			pool, err := readPool(o.ClientCA)
			if err != nil {
				return nil, err
			}
			c := base.Clone()
			c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, pool
			return c, nil
		},
	}
	if err := trusted.loadFiles(); err != nil {
		return err
	}
	s.config.ClientAuth, s.config.ClientCAs = trusted.value.ClientAuth, trusted.value.ClientCAs
	s.config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return trusted.current(), nil }
	says := s.says
	s.says = func() []string { return append(says(), "Client certificates: those signed by "+o.ClientCA) }
	return nil
}

func readPool(path string) (*x509.CertPool, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf(
			"client CA %s: it contains no certificate; expected PEM, with BEGIN CERTIFICATE",
			path,
		)
	}
	return pool, nil
}
