package packages

import (
	"context"
	"time"

	"gatehouse/internal/exec/proc"
)

// Stats are what a package uses and how it serves. Counts begin with the host.
type Stats struct {
	ID        string    `json:"id"`
	Status    string    `json:"status" doc:"status of its server: stopped, idle, starting, running, waiting or broken"`
	Confined  string    `json:"confinement"`
	Started   time.Time `json:"started,omitzero"`
	Instances int       `json:"instances" doc:"running servers"`
	Processes int       `json:"processes" doc:"of all instances"`
	Memory    int64     `json:"memory_bytes" doc:"of these; memory that they share counts for each"`
	CPU       float64   `json:"cpu_seconds" doc:"of processes that run now"`
	Disk      int64     `json:"disk_bytes,omitempty" doc:"of its program"`
	Health    Health    `json:"health"`
}

// Stats returns what packages use; all of them without ids, sorted by id. A server at an address uses nothing
// here.
func (h *Manager) Stats(ctx context.Context, id string) (all []Stats, err error) {
	if id == "" {
		list, err := h.List()
		if err != nil {
			return nil, err
		}
		for _, i := range list {
			one, err := h.Stats(ctx, i.ID)
			if err != nil {
				continue // it was removed meanwhile
			}
			all = append(all, one...)
		}
		return all, nil
	}
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	s := Stats{
		ID: id, Status: p.shared.status(), Health: p.health.snapshot(), Confined: p.rec.ShownConfinement(),
	}
	if p.shared.running != nil {
		s.Started = p.shared.started.UTC()
	}
	running := p.runningServers()
	p.mu.Unlock()
	for _, u := range running {
		s.Instances++
		used, ok := u.usage()
		if !ok {
			continue
		}
		s.Processes += used.Processes
		s.Memory += used.Memory
		s.CPU += used.CPU.Seconds()
	}
	if s.Disk, _, err = h.Usage(ctx, id); err != nil {
		return nil, err
	}
	return []Stats{s}, nil
}

// runningServers returns the servers of all instances; p.mu is held.
func (p *managedPackage) runningServers() (all []*upstream) {
	if u := p.shared.running; u != nil {
		all = append(all, u)
	}
	for _, same := range p.pool {
		for _, i := range same {
			if u := i.running; u != nil {
				all = append(all, u)
			}
		}
	}
	return all
}

// usage returns what the processes of a server use. ok is false if the server runs elsewhere, has ended, or its sandbox
// or this platform does not say.
func (u *upstream) usage() (used proc.Usage, ok bool) {
	c, counts := u.child.(interface{ Usage() (proc.Usage, error) })
	if !counts {
		return used, false
	}
	used, err := c.Usage()
	return used, err == nil
}
