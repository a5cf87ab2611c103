// Package sign makes what a user verifies a release with: checksums, the manifest
// that gatehouse update reads, and their signatures.
package sign

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"aead.dev/minisign"

	"gatehouse/release/product"
)

// Names of the files that are signed. The signature of each has .minisig appended.
const (
	Sums     = "SHA256SUMS"
	Manifest = "manifest.json"
)

// Variables that hold the key: minisign's secret key as it writes it to a file, and its
// password unless it has none.
const (
	KeyVariable      = "GATEHOUSE_RELEASE_KEY"
	PasswordVariable = "GATEHOUSE_RELEASE_PASSWORD"
)

// Key signs a release. The zero value signs nothing.
type Key struct {
	private minisign.PrivateKey
	Public  string // as minisign writes it on one line; "" for the zero value
}

// ReadKey reads the key from the environment. Without one it returns the zero value.
func ReadKey(getenv func(string) string) (Key, error) {
	text := getenv(KeyVariable)
	if text == "" {
		return Key{}, nil
	}
	var private minisign.PrivateKey
	err := private.UnmarshalText([]byte(text))
	if password := getenv(PasswordVariable); err != nil || password != "" {
		private, err = minisign.DecryptKey(password, []byte(text))
	}
	if err != nil {
		return Key{}, fmt.Errorf("read the key of %s with the password of %s: %w", KeyVariable, PasswordVariable, err)
	}
	public, ok := private.Public().(minisign.PublicKey)
	if !ok {
		return Key{}, errors.New("the key has no public key of minisign's")
	}
	return Key{private, public.String()}, nil
}

// Release writes the manifest and the checksums of everything in the folder of
// the release, and signs both.
func Release(r *product.Release, k Key) error {
	if err := writeManifest(r); err != nil {
		return err
	}
	if err := k.sign(r, Manifest); err != nil {
		return err
	}
	if k.Public != "" {
		text := "untrusted comment: minisign public key of " + product.Title + "\n" + k.Public + "\n"
		if err := os.WriteFile(r.File("gatehouse.pub"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := writeSums(r); err != nil {
		return err
	}
	return k.sign(r, Sums)
}

// sign signs a file. The trusted comment has the time of the commit, so that the
// signature is the same every time.
func (k Key) sign(r *product.Release, name string) error {
	if k.Public == "" {
		return nil
	}
	text, err := os.ReadFile(r.File(name))
	if err != nil {
		return err
	}
	trusted := fmt.Sprintf("timestamp:%d\tfile:%s\tversion:%s", r.Time.Unix(), name, r.Version)
	hashed := minisign.NewReader(bytes.NewReader(text)) // as minisign itself signs
	if _, err := io.Copy(io.Discard, hashed); err != nil {
		return err
	}
	signature := hashed.SignWithComments(k.private, trusted, "signature of "+product.Title+" "+r.Version)
	return os.WriteFile(r.File(name+".minisig"), signature, 0o644)
}

// manifest is what package internal/maintenance/update reads.
type manifest struct {
	Version  string    `json:"version"`
	Released time.Time `json:"released"`
	Notes    string    `json:"notes,omitempty"`
	Files    []file    `json:"files"`
}

type file struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func writeManifest(r *product.Release) error {
	m := manifest{Version: r.Version, Released: r.Time, Notes: r.Page() + "/releases/tag/v" + r.Version}
	for _, p := range r.Platforms {
		name := p.Exe(r.Base(product.Name, p))
		size, sum, err := Digest(r.File(name))
		if err != nil {
			return err
		}
		m.Files = append(m.Files, file{p.OS, p.Arch, name, size, sum})
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.File(Manifest), append(text, '\n'), 0o644)
}

// Digest returns the size of a file in bytes and its SHA-256 in hexadecimal.
func Digest(name string) (int64, string, error) {
	body, err := os.ReadFile(name)
	sum := sha256.Sum256(body)
	return int64(len(body)), hex.EncodeToString(sum[:]), err
}

// writeSums writes the checksums of all files, in the form of sha256sum.
func writeSums(r *product.Release) error {
	var text strings.Builder
	err := filepath.WalkDir(r.Dist, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(r.Dist, at)
		if err != nil {
			return err
		}
		_, sum, err := Digest(at)
		fmt.Fprintf(&text, "%s  %s\n", sum, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		return err
	}
	return os.WriteFile(r.File(Sums), []byte(text.String()), 0o644)
}
