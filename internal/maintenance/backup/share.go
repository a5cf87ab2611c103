package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"strings"
	"time"

	"github.com/cloudsoda/go-smb2"

	"gatehouse/internal/access/secret"
)

const (
	shareDial  = 15 * time.Second
	shareStall = 2 * time.Minute // for one operation
)

var errStall = errors.New("the file server stopped answering")

// share is a folder of an SMB share. If an operation takes longer than shareStall, it
// and all later ones fail.
type share struct {
	conn    net.Conn
	session *smb2.Session
	mount   *smb2.Share
	live    *smb2.Share // mount, until an operation stalls
	stall   context.CancelCauseFunc
	dir     string
}

// dialShare connects to a share, and creates its folder if it does not exist.
func dialShare(ctx context.Context, t Target, password secret.Text) (_ store, err error) {
	addr := t.Host
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), "445")
	}
	conn, err := (&net.Dialer{Timeout: shareDial}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &share{conn: conn, dir: t.Path}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	who := &smb2.NTLMInitiator{User: t.User, Password: password.Reveal()}
	if domain, user, found := strings.Cut(t.User, `\`); found {
		who.Domain, who.User = domain, user
	}
	login, cancel := context.WithTimeout(ctx, shareDial)
	defer cancel()
	if s.session, err = (&smb2.Dialer{Initiator: who}).DialConn(login, conn, addr); err != nil {
		return nil, fmt.Errorf("log in at %s: %w", addr, err)
	}
	if s.mount, err = s.session.WithContext(login).Mount(t.Share); err != nil {
		return nil, fmt.Errorf("open the share %s: %w", t.Share, err)
	}
	living, stall := context.WithCancelCause(
		context.WithoutCancel(ctx),
	) // aborting an upload closes its file after ctx is done
	s.live, s.stall = s.mount.WithContext(living), stall
	if err := s.makeFolder(); err != nil {
		return nil, fmt.Errorf("open the folder %s: %w", t.Path, err)
	}
	return &folder{s}, nil
}

func (s *share) makeFolder() error {
	at := ""
	for part := range strings.SplitSeq(s.dir, "/") {
		if at = path.Join(at, part); at == "" {
			return nil
		}
		if _, err := s.live.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			continue
		}
		if err := s.live.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// during runs f. If f takes longer than shareStall, all operations fail.
func (s *share) during(f func() error) error {
	late := time.AfterFunc(shareStall, func() { s.stall(errStall) })
	defer late.Stop()
	return f()
}

func (s *share) ReadDir() (all []fs.FileInfo, err error) {
	err = s.during(func() error {
		all, err = s.live.ReadDir(s.dir)
		return err
	})
	return all, err
}

func (s *share) openFile(name string, flags int) (placeFile, error) {
	var f *smb2.File
	err := s.during(func() (err error) {
		f, err = s.live.OpenFile(path.Join(s.dir, name), flags, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &shareFile{f, s}, nil
}

func (s *share) Open(name string) (placeFile, error) { return s.openFile(name, os.O_RDONLY) }

func (s *share) Create(name string) (placeFile, error) {
	return s.openFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY)
}

func (s *share) Rename(from, to string) error {
	return s.during(func() error { return s.live.Rename(path.Join(s.dir, from), path.Join(s.dir, to)) })
}

func (s *share) Remove(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), shareDial)
	defer cancel()
	return s.mount.WithContext(ctx).Remove(path.Join(s.dir, name))
}

func (s *share) Sync() error { return nil } // the file server syncs folders

// Close logs off, if the file server answers within shareDial.
func (s *share) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shareDial)
	defer cancel()
	if s.mount != nil {
		s.mount.WithContext(ctx).Umount()
	}
	if s.session != nil {
		s.session.WithContext(ctx).Logoff()
	}
	if s.stall != nil {
		s.stall(nil)
	}
	s.conn.Close()
	return nil
}

type shareFile struct {
	*smb2.File
	share *share
}

func (f *shareFile) Read(p []byte) (n int, err error) {
	err = f.share.during(func() error {
		n, err = f.File.Read(p)
		return err
	})
	return n, err
}

func (f *shareFile) Write(p []byte) (n int, err error) {
	err = f.share.during(func() error {
		n, err = f.File.Write(p)
		return err
	})
	return n, err
}

func (f *shareFile) Sync() error { return f.share.during(f.File.Sync) }
