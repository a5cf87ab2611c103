package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/image"
	"gatehouse/tool"
)

// imageHome is where the program of an image finds the package's data folder. It is the HOME of the program.
const imageHome = "/home/user"

// fetchImage pulls the image of a package into the folder of its program. What was installed from the same source, or
// is written in a lock file, is pulled by its digest.
func (p *managedPackage) fetchImage(
	ctx context.Context, r *Record, plan *Plan, dir string, say func(done, total int64, units string),
) error {
	ref := p.imageRef(r, plan)
	got, err := image.Pull(ctx, ref, dir, p.manager.pullOptions(),
		func(done, total int64) { say(done, total, "bytes") })
	if err != nil {
		return fmt.Errorf("source %s: %w", r.Source, err)
	}
	if _, want, ok := strings.Cut(ref, "@"); ok && want != got.Digest {
		return tool.Refuse(tool.CodeDenied, "source %s: the registry has %s by the digest %s", r.Source, got.Digest,
			want)
	}
	r.Digest = got.Digest
	if r.Version == "" {
		_, tag := r.Source.split()
		r.Version = cmp.Or(tag, got.Digest)
	}
	return nil
}

// imageRef returns the reference that the image of a package is pulled by.
func (p *managedPackage) imageRef(r *Record, plan *Plan) string {
	digest := ""
	p.mu.Lock()
	if was := p.rec; !plan.fresh && was.State != Installing && was.Source == r.Source {
		digest = was.Digest
	}
	p.mu.Unlock()
	if plan.Expect != nil {
		digest = cmp.Or(plan.Expect.Digest, digest)
	}
	if _, version := r.Source.split(); digest == "" || strings.HasPrefix(version, "sha256:") {
		return r.Source.From
	}
	return r.Source.Name() + "@" + digest
}

func (h *Manager) pullOptions() (o image.PullOptions) {
	if h.opts.Images != nil {
		o = h.opts.Images()
	}
	return o
}

// pulledImage returns the image of a package, and what it says of how it is run.
func (p *managedPackage) pulledImage(r *Record) (*sandbox.Image, image.Pulled, error) {
	return image.ReadPulled(r.program(p.folder()))
}

// imageCommand returns the program of an image to start: its entry point with the arguments of the record, or else with
// its own. The record's command replaces the entry point and, as in docker, the image's own arguments.
func (p *managedPackage) imageCommand(r *Record) (command string, args []string, err error) {
	_, im, err := p.pulledImage(r)
	if err != nil {
		return "", nil, err
	}
	words, own := im.Config.Entrypoint, im.Config.Cmd
	if entry := cmp.Or(r.Command, r.Image.entrypoint()); entry != "" {
		words, own = []string{p.expand(r, entry)}, nil
	}
	if len(r.Args) > 0 {
		own = nil
		for _, a := range r.Args {
			own = append(own, p.expand(r, a))
		}
	}
	words = append(slices.Clone(words), own...)
	if len(words) == 0 {
		return "", nil, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "the program to start is unknown: the image has neither an entry point nor a command",
			Next:    "Set command to a program of the image.",
		}
	}
	return words[0], words[1:], nil
}

func (o *ImageOptions) entrypoint() string {
	if o == nil {
		return ""
	}
	return o.Entrypoint
}

// imageJob returns how the program of an image runs in its sandbox.
func (p *managedPackage) imageJob(r *Record) (j job, err error) {
	im, pulled, err := p.pulledImage(r)
	if err != nil {
		return j, err
	}
	granted, err := p.grantedMounts(r)
	if err != nil {
		return j, err
	}
	j.image, j.dir = im, cmp.Or(pulled.Config.Dir, "/")
	if j.users, err = p.imageUsers(r, im, pulled); err != nil {
		return j, err
	}
	p.owners.Lock()
	defer p.owners.Unlock()
	if err := p.prepareOwners(j.users); err != nil {
		return j, err
	}
	j.mounts = append(j.mounts, sandbox.Mount{From: realPath(p.data()), To: imageHome, Write: true, Owned: true})
	new := newVolumes{im.Root, pulled.Owners, j.users}
	for _, at := range pulled.Config.Volumes {
		if r.Image.mountsAt(at) || at == imageHome {
			continue
		}
		from, err := p.volume(at, new)
		if err != nil {
			return j, err
		}
		j.mounts = append(j.mounts, sandbox.Mount{From: from, To: at, Write: true, Owned: true})
	}
	if o := r.Image; o != nil {
		j.dir = cmp.Or(o.Dir, j.dir)
		for _, m := range o.Mounts {
			one, err := p.imageMount(r, m, new)
			if err != nil {
				return j, err
			}
			j.mounts = append(j.mounts, one)
		}
	}
	j.mounts = append(j.mounts, granted...)
	return j, nil
}

func (o *ImageOptions) mountsAt(at string) bool {
	return o != nil && slices.ContainsFunc(o.Mounts, func(m ImageMount) bool { return m.To == at })
}

// volumes is the folder, in the data folder, of what an image declares as volumes.
const volumes = "volumes"

// newVolumes are what a new volume starts with.
type newVolumes struct {
	root   string            // of the image
	owners map[string]string // of its files, as image.Pulled has them
	users  *sandbox.Users    // nil if it runs as one user
}

// volume returns the folder of the host for a volume of an image. A new one starts with the files that the image has
// there.
func (p *managedPackage) volume(at string, new newVolumes) (string, error) {
	name := "unnamed" + strings.ReplaceAll(at, "/", "-")
	return p.namedVolume(name, at, new)
}

func (p *managedPackage) namedVolume(name, at string, new newVolumes) (string, error) {
	to := filepath.Join(p.data(), volumes, name)
	if _, err := os.Lstat(to); err == nil {
		return realPath(to), nil
	}
	making := to + ".part"
	if err := errors.Join(p.removeOwned(making), os.MkdirAll(making, 0o700)); err != nil {
		return "", err
	}
	err := p.fillVolume(making, at, new.root)
	if err == nil && new.users != nil {
		if err = os.Chmod(filepath.Dir(making), 0o711); err == nil { // each volume has permissions of its own
			err = p.chownVolume(path.Join(volumes, name+".part"), at, new.owners, new.users)
		}
	}
	if err != nil {
		return "", fmt.Errorf("volume %s: %w", at, errors.Join(err, p.removeOwned(making)))
	}
	if err := os.Rename(making, to); err != nil {
		return "", err
	}
	return realPath(to), nil
}

// fillVolume copies the files of the image at a path, if there is a folder.
func (p *managedPackage) fillVolume(making, at, root string) error {
	from, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer from.Close()
	name := strings.TrimPrefix(path.Clean(at), "/")
	if info, err := from.Stat(name); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil
	} else if err != nil {
		return err
	}
	to, err := os.OpenRoot(making)
	if err != nil {
		return err
	}
	defer to.Close()
	c := &copying{ctx: p.manager.ctx, to: to, report: func(int64, int64, string) {}}
	return c.folder(from, name)
}

// imageMount returns a mount of the record: a folder that was granted, or a volume of the data folder.
func (p *managedPackage) imageMount(r *Record, m ImageMount, new newVolumes) (sandbox.Mount, error) {
	one := sandbox.Mount{To: m.To, Write: m.Write}
	if name, ok := strings.CutPrefix(m.From, "${data}/"+volumes+"/"); ok {
		from, err := p.namedVolume(name, m.To, new)
		one.From, one.Owned = from, true
		return one, err
	}
	one.From = realPath(m.From)
	return one, nil
}

// checkImage validates what a record says of its image.
func (r *Record) checkImage() error {
	switch o := r.Image; {
	case o != nil && r.Source.Kind != OCI:
		return invalid("image: the source is no image")
	case r.Source.Kind != OCI:
		return nil
	case r.Confinement == Trusted:
		return invalid("an image runs only in a sandbox: leave out the trust; with the word command first, docker or " +
			"podman runs it")
	case o == nil:
		return nil
	case o.Dir != "" && !path.IsAbs(o.Dir):
		return invalid("image: the working folder %q is not absolute", shorten(o.Dir, 200))
	case len(o.Mounts) > mostGrants:
		return invalid("image: at most %d mounts", mostGrants)
	}
	for _, m := range r.Image.Mounts {
		if !path.IsAbs(m.To) || path.Clean(m.To) != m.To || m.To == "/" || strings.ContainsAny(m.To, "\x00\n") {
			return invalid("image: %q is no place of a mount: expected an absolute path other than /",
				shorten(m.To, 200))
		}
		if name, ok := strings.CutPrefix(m.From, "${data}/"+volumes+"/"); ok && programName().MatchString(name) {
			continue
		}
		if err := checkGranted("mount", m.From); err != nil {
			return err
		}
	}
	return nil
}

// GrantMounts grants a package the folders of this machine that the options of its image mount.
func (r *Record) GrantMounts() {
	r.Grants = r.Grants.with(Grants{Folders: r.Image.hostFolders()})
}

// hostFolders returns the folders of the host that are mounted, as grants.
func (o *ImageOptions) hostFolders() (folders []string) {
	if o == nil {
		return nil
	}
	for _, m := range o.Mounts {
		if strings.HasPrefix(m.From, "${data}/") {
			continue
		}
		text := realPath(m.From)
		if !m.Write {
			text += ":ro"
		}
		folders = append(folders, text)
	}
	return folders
}

// ungrantedMounts returns the mounts of the image that the grants do not cover: each needs one, also to write.
func (r *Record) ungrantedMounts() (missing []string) {
	for _, text := range r.Image.hostFolders() {
		path, write := grantedFolder(text)
		if !slices.ContainsFunc(r.Grants.Folders, func(g string) bool {
			folder, mayWrite := grantedFolder(g)
			if _, ok := announcedGrant(g); ok {
				return false // not all of it
			}
			return within(folder, path) && (mayWrite || !write)
		}) {
			missing = append(missing, text)
		}
	}
	return missing
}

// describeImage says in plain words what an image wants, and what differs here.
// single says why it runs as one user; nil if it has users of its own.
func describeImage(im image.Pulled, options *ImageOptions, single error) (lines []string) {
	c := im.Config
	lines = append(lines,
		fmt.Sprintf("The image %s has %d layers with %d MiB.", im.Digest, len(im.Layers), im.Bytes>>20))
	if c.Source != "" {
		lines = append(lines, "It says that its source is "+shorten(c.Source, 200)+"; nothing proves that.")
	}
	if words := slices.Concat(c.Entrypoint, c.Cmd); len(words) > 0 && options.entrypoint() == "" {
		lines = append(lines, "It starts "+shorten(strings.Join(words, " "), 500)+" in "+cmp.Or(c.Dir, "/")+".")
	}
	if len(c.Volumes) > 0 {
		lines = append(lines,
			"It keeps files in "+strings.Join(c.Volumes, ", ")+", which are folders of its data here.")
	}
	user := c.User
	if options != nil {
		user = cmp.Or(options.User, user)
	}
	root := user == "" || strings.HasPrefix(user, "root") || strings.HasPrefix(user, "0")
	user = cmp.Or(shorten(user, 100), "root")
	switch {
	case single == nil && root:
		lines = append(lines, "It starts as root of its sandbox, which has users of its own: it may change owners of "+
			"its own files and become other users there, without any right on this machine.")
	case single == nil:
		lines = append(lines, "It runs as user "+user+" of its sandbox, which has users of its own, without any right on "+
			"this machine.")
	case root:
		lines = append(lines, "It asks to run as root. Here it runs as the one user of its sandbox, without any right of "+
			"root, because "+shorten(single.Error(), 400)+". Changes of owners and users in its start report success and "+
			"have no effect; an image that needs their effect fails when it is tried.")
	default:
		lines = append(lines, "It asks to run as user "+user+". Here it runs as the one user of its sandbox, who owns its "+
			"files, because "+shorten(single.Error(), 400)+".")
	}
	return lines
}

// child is the job of a program of an image: see startServer.
func (j job) child(command string, args, env []string, r *Record, in io.ReadCloser, stdout, stderr io.Writer) job {
	j.argv, j.env = append([]string{command}, args...), env
	j.grants, j.hosts, j.by = r.Grants, r.Grants.Hosts, r.Outbound
	j.stdin, j.stdout, j.stderr = in, stdout, stderr
	return j
}

// Describe says in plain words what a source wants that is known before it is installed; nil if nothing is.
func (h *Manager) Describe(ctx context.Context, r *Record) []string {
	ctx, cancel := context.WithTimeout(ctx, describeTime)
	defer cancel()
	switch r.Source.Kind {
	case NPM:
		return h.describeNPM(ctx, r)
	case OCI:
	default:
		return nil
	}
	im, err := image.Inspect(ctx, r.Source.From, h.pullOptions())
	if err != nil {
		return []string{"Its registry could not be asked what it is: " + shorten(err.Error(), 300) + "."}
	}
	lines := describeImage(im, r.Image, h.ownUsers(r))
	root, err := h.trustedRoot()
	if err != nil {
		return append(lines, "The file of trusted roots cannot be used: "+err.Error()+".")
	}
	id, err := imageAttested(ctx, root, r.Source.Name(), im.Digest, h.pullOptions())
	if err != nil {
		return append(lines, "Its attestation cannot be verified: "+shorten(err.Error(), 300)+".")
	}
	return append(lines, attestedLine(id))
}

const describeTime = 20 * time.Second
