package image

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/name"
)

// Kind is the kind of a reference.
type Kind string

const (
	Folder   Kind = "dir"      // a folder of the host, used as it is
	Layout   Kind = "oci"      // a folder that holds an OCI image layout
	Archive  Kind = "tar"      // a tar of an OCI image layout, or an archive of docker save
	Registry Kind = "registry" // a repository in a registry
)

// Local reports whether the image is a path of the host. Only the administrator may name such images.
func (k Kind) Local() bool { return k != Registry }

// Ref is a reference to an image. It is one of
//
//	dir:/path                         a folder to use as / in the sandbox
//	oci:/path[:tag]                   a folder that holds an OCI image layout
//	tar:/path[:tag]                   a tar of such a layout, or of docker save
//	host[:port]/name[:tag][@digest]   in a registry, with a tag, a digest or both
//
// A path is absolute and clean, without "." and "..". A tag may be omitted if there is only one image for this
// machine. The host of a registry is never omitted, and no default tag is assumed.
type Ref struct {
	Kind   Kind
	Path   string // on the host, except for Registry
	Tag    string // "" if none is given
	Host   string // of the registry, with its port
	Digest string // sha256:..., "" if none is given

	text   string
	remote name.Reference
}

// String returns the reference as it was written.
func (r Ref) String() string { return r.text }

const longestRef = 4096 // bytes

// Syntax from the distribution specification.
var (
	tags         = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`) })
	repositories = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	})
)

// ParseRef parses a reference. The error says what was expected.
func ParseRef(text string) (Ref, error) {
	if len(text) > longestRef {
		return Ref{}, fmt.Errorf("the reference to an image has %d bytes; it may have %d", len(text), longestRef)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unprintable) {
		return Ref{}, fmt.Errorf("the reference to an image is %q: expected UTF-8 without control characters", text)
	}
	kind, rest, _ := strings.Cut(text, ":")
	switch Kind(kind) {
	case Folder:
		return checkLocal(Ref{Kind: Folder, Path: rest, text: text})
	case Layout, Archive:
		r := Ref{Kind: Kind(kind), Path: rest, text: text}
		if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
			r.Path, r.Tag = rest[:i], rest[i+1:]
			if !tags().MatchString(r.Tag) {
				return Ref{},
					fmt.Errorf("image %q: expected a tag of up to 128 letters, digits, _, . and - after "+
						"the last colon", text)
			}
		}
		return checkLocal(r)
	}
	return parseRemote(text)
}

func unprintable(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }

func checkLocal(r Ref) (Ref, error) {
	if !strings.HasPrefix(r.Path, "/") || path.Clean(r.Path) != r.Path {
		return Ref{},
			fmt.Errorf("image %q: expected an absolute path without . and .. after %s:, such as %s:/srv/image",
				r.text, r.Kind, r.Kind)
	}
	return r, nil
}

func parseRemote(text string) (Ref, error) {
	const expected = "expected dir:/path, oci:/path[:tag], tar:/path[:tag] or host[:port]/name with :tag, " +
		"@sha256:... or both"
	host, _, found := strings.Cut(text, "/")
	if !found || host == "" || !strings.ContainsAny(host, ".:") && host != "localhost" {
		return Ref{}, fmt.Errorf("image %q does not start with the host of a registry: %s", text, expected)
	}
	r, err := name.ParseReference(text, name.StrictValidation)
	if err != nil {
		return Ref{}, fmt.Errorf("image %q: %w: %s", text, err, expected)
	}
	if !repositories().MatchString(r.Context().RepositoryStr()) {
		return Ref{},
			fmt.Errorf("image %q: expected a repository of lower-case letters and digits with single . _ or - "+
				"between them: %s", text, expected)
	}
	out := Ref{Kind: Registry, Host: r.Context().RegistryStr(), text: text, remote: r}
	switch r := r.(type) {
	case name.Tag:
		out.Tag = r.TagStr()
	case name.Digest:
		out.Digest = r.DigestStr()
		if named, _, _ := strings.Cut(text, "@"); strings.LastIndexByte(named,
			':') > strings.LastIndexByte(named, '/') {
			out.Tag = named[strings.LastIndexByte(named, ':')+1:]
		}
	}
	return out, nil
}

// CheckCallersRef returns an error if a caller may not name an image: only the administrator may name paths. Whether
// the registry is allowed is checked when the image is pulled.
func CheckCallersRef(ref string) error {
	r, err := ParseRef(ref)
	if err == nil && r.Kind.Local() {
		err = errors.New("only templates can name files of this host; expected host/name:tag of a registry")
	}
	return err
}
