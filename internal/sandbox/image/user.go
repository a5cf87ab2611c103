package image

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// User are the ids of a user of an image.
type User struct {
	UID, GID uint32
	Groups   []uint32 // further groups that have the user as a member
}

const (
	largestUsers = 1 << 20 // bytes of a list of users or groups that are read
	mostGroups   = 64
)

// FindUser returns the ids of a user that an image names, as Config.User has it: a name or number, and after a colon a
// group. The names are those of the lists in its folder root.
func FindUser(root, text string) (u User, err error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return u, err
	}
	defer r.Close()
	name, group, withGroup := strings.Cut(text, ":")
	if name == "" {
		name = "0"
	}
	uid, isNumber := parseID(name)
	found := isNumber
	err = readList(r, "etc/passwd", func(f []string) bool {
		if len(f) < 4 || f[0] != name && (!isNumber || f[2] != name) {
			return false
		}
		id, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if ok1 && ok2 {
			uid, u.GID, name, found = id, gid, f[0], true
		}
		return ok1 && ok2
	})
	if err == nil && !found {
		err = fmt.Errorf("its /etc/passwd has no user %.100q, and it is no number below 65536", name)
	}
	if err != nil {
		return u, err
	}
	u.UID = uid
	gid, isNumber := parseID(group)
	found = !withGroup || isNumber
	err = readList(r, "etc/group", func(f []string) bool {
		id, ok := uint32(0), false
		if len(f) >= 3 {
			id, ok = parseID(f[2])
		}
		switch {
		case !ok:
		case withGroup && !isNumber && f[0] == group:
			gid, found = id, true
			return true
		case !withGroup && len(f) > 3 && slices.Contains(strings.Split(f[3], ","), name) && len(u.Groups) < mostGroups:
			u.Groups = append(u.Groups, id)
		}
		return false
	})
	if err == nil && !found {
		err = fmt.Errorf("its /etc/group has no group %.100q, and it is no number below 65536", group)
	}
	if withGroup {
		u.GID = gid
	}
	return u, err
}

// parseID parses an id that a sandbox has.
func parseID(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint32(n), err == nil
}

// readList calls use with the fields of each line of a list until it returns true. A list that does not exist, or is no
// file inside of the image, is empty.
func readList(r *os.Root, file string, use func(fields []string) bool) error {
	info, err := r.Stat(file)
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := r.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, largestUsers))
	for lines.Scan() {
		if use(strings.Split(lines.Text(), ":")) {
			return nil
		}
	}
	return lines.Err()
}

const mostOwners = 1000

// volumeOwners returns the owners, as UID:GID, of what layers have at or below volumes, by absolute paths, without what
// belongs to root, and without those that the folder above has too.
func volumeOwners(all map[string]string, volumes []string) (map[string]string, error) {
	owners := map[string]string{}
	for name, owner := range all {
		at := path.Join("/", name)
		for _, v := range volumes {
			if at == v || strings.HasPrefix(at, v+"/") && all[path.Dir(name)] != owner {
				owners[at] = owner
			}
		}
	}
	if len(owners) > mostOwners {
		return nil, fmt.Errorf("the files in its volumes have too many different owners: %d of them differ from their "+
			"folder, and %d may", len(owners), mostOwners)
	}
	return owners, nil
}
