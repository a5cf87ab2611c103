package packages

import (
	"errors"
	"slices"
)

var errCancelledInstall = errors.New("the installation was cancelled")

// Ports returns the TCP ports that the servers of a package listen on, sorted. It returns none where the platform
// does not say.
func (h *Manager) Ports(id string) (ports []int, err error) {
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	running := p.runningServers()
	p.mu.Unlock()
	for _, u := range running {
		if used, ok := u.usage(); ok {
			ports = append(ports, used.Ports...)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// CancelInstall ends the installation or update of a package, if one runs. It reports whether one did.
func (h *Manager) CancelInstall(id string) bool {
	p, err := h.findPackage(id)
	if err != nil {
		return false
	}
	p.mu.Lock()
	abort := p.abort
	p.mu.Unlock()
	if abort == nil {
		return false
	}
	abort(errCancelledInstall)
	return true
}
