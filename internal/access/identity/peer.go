package identity

import (
	"context"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// Peer returns the principal of the process at the other end of a Unix socket, as the kernel reports
// it. The user of this process is an admin, because that user could read and change all data of the
// host anyway. root and other users have the roles of the user of their name; other users without such
// a user are not admitted.
func (s *Service) Peer(uid uint32) (Principal, bool) {
	if int64(uid) == int64(os.Getuid()) {
		return Principal{
			Name:       s.owner,
			Roles:      []string{Admin},
			Way:        Peer,
			Credential: "uid:" + strconv.Itoa(int(uid)),
		}, true
	}
	name, ok := systemUser(strconv.FormatUint(uint64(uid), 10))
	if !ok {
		return Principal{}, false
	}
	s.refreshCaches(false)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, there, err := s.findAccount(ctx, "name = ?", name)
	if err != nil || !there && uid != 0 {
		return Principal{}, false
	}
	return Principal{
		Name:       name,
		ID:         a.id,
		Roles:      a.roles,
		Way:        Peer,
		Credential: "uid:" + strconv.FormatUint(uint64(uid), 10),
	}, true
}

// StdioID is the credential of the caller on standard input and output.
const StdioID = "stdio"

// Owner returns the principal of the user that started this process, for standard input and output. It
// has no role, because the other end is usually an agent.
func (s *Service) Owner() Principal { return Principal{Name: s.owner, Way: Stdio, Credential: StdioID} }

// systemUser returns the name of a user of the operating system.
func systemUser(uid string) (string, bool) {
	u, err := user.LookupId(uid)
	if err != nil || u.Username == "" || u.Username == AnonymousName {
		return "", false
	}
	return u.Username, true
}

// processOwner returns the name of the user that this process runs as.
func processOwner() string {
	if name, ok := systemUser(strconv.Itoa(os.Getuid())); ok {
		return name
	}
	if u, err := user.Current(); err == nil && u.Username != "" && u.Username != AnonymousName {
		_, name, found := strings.Cut(u.Username, `\`) // a Windows domain precedes the name
		if !found {
			name = u.Username
		}
		return name
	}
	return "uid-" + strconv.Itoa(os.Getuid()) // a container without a list of users
}
