package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/atomicfile"
)

// Kinds of targets.
const (
	Directory = "directory"
	S3        = "s3"
	SMB       = "smb"
)

// Target is a place for backups. Its password or key is a secret of the host, which
// Secret names.
type Target struct {
	Name string `json:"name"`
	Kind string `json:"kind"`           // directory, s3 or smb
	Path string `json:"path,omitempty"` // the folder; for s3 a prefix of the keys
	Keep int    `json:"keep,omitempty"` // backups of one host that are kept; 0 means all

	Endpoint  string `json:"endpoint,omitempty"` // of s3: https://host[:port]
	Bucket    string `json:"bucket,omitempty"`
	Region    string `json:"region,omitempty"` // "" means us-east-1
	AccessKey string `json:"access_key,omitempty"`

	Host  string `json:"host,omitempty"` // of smb: a name or address, with :port unless it is 445
	Share string `json:"share,omitempty"`
	User  string `json:"user,omitempty"` // "" means a guest; DOMAIN\user is possible

	Secret string `json:"secret,omitempty"` // name of the secret that holds the password or secret key
}

const (
	targetsFile = "backup-targets.json"
	maxTargets  = 100
)

var targetName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

// store holds the backups of a target.
type store interface {
	list(context.Context) ([]Entry, error)
	create(ctx context.Context, name string) (upload, error)
	// open returns an error that matches fs.ErrNotExist if the backup does not
	// exist. Reads fail when ctx is done.
	open(ctx context.Context, name string) (body io.ReadCloser, size int64, err error)
	remove(ctx context.Context, name string) error
	close() error
}

// upload is a backup that is being written. It exists in the store once commit has
// returned nil.
type upload interface {
	io.Writer
	commit(context.Context) error
	abort() // does nothing after commit
}

// Targets returns the targets, sorted by name.
func (r *Manager) Targets() ([]Target, error) {
	if r.o.Folders.Config == "" {
		return nil, nil
	}
	text, err := atomicfile.Read(r.targetsFile(), 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Target
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", r.targetsFile(), err)
	}
	return all, nil
}

func (r *Manager) targetsFile() string { return filepath.Join(r.o.Folders.Config, targetsFile) }

// Target returns a target. name "" means the only one; an absolute path means a
// folder.
func (r *Manager) Target(name string) (Target, error) {
	if filepath.IsAbs(name) {
		t := Target{Name: name, Kind: Directory, Path: name}
		return t, t.checkDirectory(r.o.Folders)
	}
	all, err := r.Targets()
	if err != nil {
		return Target{}, err
	}
	i := slices.IndexFunc(all, func(t Target) bool { return t.Name == name })
	switch {
	case name == "" && len(all) == 1:
		return all[0], nil
	case name == "" && len(all) > 1:
		return Target{}, invalid("there are %d targets; give the name of one", len(all))
	case i < 0:
		return Target{}, ErrNoTarget
	}
	return all[i], nil
}

// SetTarget creates or replaces a target, if a connection to it succeeds.
func (r *Manager) SetTarget(ctx context.Context, t Target) error {
	if err := t.validate(r.o.Folders); err != nil {
		return err
	}
	s, err := r.connectTarget(ctx, t)
	if err != nil {
		return err
	}
	_, err = s.list(ctx)
	if err = errors.Join(err, s.close()); err != nil {
		return fmt.Errorf("try the target: %w", err)
	}
	return r.changeTargets(func(all []Target) ([]Target, error) {
		if i := slices.IndexFunc(all, func(o Target) bool { return o.Name == t.Name }); i >= 0 {
			all[i] = t
			return all, nil
		}
		if len(all) >= maxTargets {
			return nil, invalid("there are %d targets, which is the limit", len(all))
		}
		return append(all, t), nil
	})
}

// RemoveTarget removes a target from the settings. The backups in it stay.
func (r *Manager) RemoveTarget(name string) error {
	return r.changeTargets(func(all []Target) ([]Target, error) {
		left := slices.DeleteFunc(slices.Clone(all), func(t Target) bool { return t.Name == name })
		if len(left) == len(all) {
			return nil, ErrNoTarget
		}
		return left, nil
	})
}

func (r *Manager) changeTargets(f func([]Target) ([]Target, error)) error {
	if r.o.Folders.Config == "" {
		return errors.New("this host has no folder to store targets in")
	}
	unlock, err := atomicfile.Lock(r.targetsFile() + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	all, err := r.Targets()
	if err != nil {
		return err
	}
	if all, err = f(all); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(r.targetsFile(), append(text, '\n'))
}

// validate returns an error if a target is not valid.
func (t Target) validate(f Folders) error {
	if !targetName.MatchString(t.Name) {
		return invalid("name %.60q: expected 1 to 40 of a-z, 0-9, - and _, beginning with a letter or digit", t.Name)
	}
	if t.Keep < 0 {
		return invalid("keep is %d: expected 0 for all, or how many backups", t.Keep)
	}
	if t.Secret != "" {
		if err := secret.CheckName(t.Secret); err != nil {
			return invalid("secret: %v", err)
		}
	}
	for name, of := range map[string]string{"endpoint": t.Endpoint, "bucket": t.Bucket, "region": t.Region,
		"access_key": t.AccessKey} {
		if of != "" && t.Kind != S3 {
			return invalid("%s is for targets of kind s3", name)
		}
	}
	for name, of := range map[string]string{"host": t.Host, "share": t.Share, "user": t.User} {
		if of != "" && t.Kind != SMB {
			return invalid("%s is for targets of kind smb", name)
		}
	}
	switch t.Kind {
	case Directory:
		return t.checkDirectory(f)
	case S3:
		return t.checkS3()
	case SMB:
		return t.checkSMB()
	}
	return invalid("kind %.40q: expected directory, s3 or smb", t.Kind)
}

// checkDirectory requires that the folder exists, because otherwise a disk may not be
// mounted.
func (t Target) checkDirectory(f Folders) error {
	if !filepath.IsAbs(t.Path) {
		return invalid("path %.200q: expected an absolute path of a folder", t.Path)
	}
	info, err := os.Stat(t.Path)
	if err != nil || !info.IsDir() {
		return invalid("path %.200q: the folder does not exist; create or mount it", t.Path)
	}
	real, err := filepath.EvalSymlinks(t.Path)
	if err != nil {
		return err
	}
	for _, n := range f.existing() {
		own, err := os.Stat(n.path)
		if err != nil {
			continue
		}
		for p := real; ; p = filepath.Dir(p) {
			if at, err := os.Stat(p); err == nil && os.SameFile(at, own) {
				return invalid("path %.200q is in a folder that is backed up; choose another", t.Path)
			}
			if p == filepath.Dir(p) {
				break
			}
		}
	}
	return nil
}

func (t Target) checkS3() error {
	u, err := url.Parse(t.Endpoint)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" ||
		u.User != nil {
		return invalid("endpoint %.200q: expected https://host or https://host:port", t.Endpoint)
	}
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`).MatchString(t.Bucket) {
		return invalid("bucket %.80q: expected 3 to 63 of a-z, 0-9, - and .", t.Bucket)
	}
	if !regexp.MustCompile(`^[a-z0-9-]{0,40}$`).MatchString(t.Region) {
		return invalid("region %.60q: expected one such as us-east-1", t.Region)
	}
	if t.AccessKey == "" || t.Secret == "" || strings.ContainsAny(t.AccessKey, "/, \r\n") {
		return invalid(
			"a target of kind s3 needs access_key, and secret with the name of the secret that holds the secret key",
		)
	}
	return t.checkBelow()
}

func (t Target) checkSMB() error {
	if t.Host == "" || strings.ContainsAny(t.Host, "/\\ ") || t.Share == "" ||
		strings.ContainsAny(t.Share, `/\:*?"<>|`) {
		return invalid("a target of kind smb needs host and share, such as nas and backups")
	}
	if t.User != "" && t.Secret == "" {
		return invalid("a target of kind smb with user needs secret, the name of the secret that holds the password")
	}
	return t.checkBelow()
}

// checkBelow checks the path in a bucket or share.
func (t Target) checkBelow() error {
	if t.Path != "" && (!fs.ValidPath(t.Path) || path.Clean(t.Path) == "." || strings.ContainsAny(t.Path, "\\\r\n")) {
		return invalid("path %.200q: expected a relative path such as hosts/house", t.Path)
	}
	return nil
}

// openTarget connects to a target.
func (r *Manager) openTarget(ctx context.Context, name string) (Target, store, error) {
	t, err := r.Target(name)
	if err != nil {
		return t, nil, err
	}
	s, err := r.connectTarget(ctx, t)
	return t, s, err
}

func (r *Manager) connectTarget(ctx context.Context, t Target) (store, error) {
	var password secret.Text
	if t.Secret != "" {
		if r.o.Secrets == nil {
			return nil, errors.New("this host has no store of secrets")
		}
		var err error
		if password, err = r.o.Secrets.Get(t.Secret); errors.Is(err, secret.ErrNotFound) {
			return nil, invalid(
				"the target %s needs the secret %s; store it with gatehouse secret set %s",
				t.Name,
				t.Secret,
				t.Secret,
			)
		} else if err != nil {
			return nil, err
		}
	}
	switch t.Kind {
	case Directory:
		return openDirectory(t)
	case S3:
		return newBucket(t, password, r.o.part, r.o.now)
	case SMB:
		return dialShare(ctx, t, password)
	}
	return nil, invalid("target %s has the kind %q, which this release does not support", t.Name, t.Kind)
}
