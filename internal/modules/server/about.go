package server

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"

	"gatehouse/tool"
)

type timeOut struct {
	Now           string `json:"now" doc:"UTC, RFC 3339"`
	Uptime        int64  `json:"uptime" doc:"seconds since the host was started"`
	MachineUptime uint64 `json:"machineUptime,omitempty" doc:"seconds since the machine was started"`
}

func (s *server) time(ctx context.Context, _ *tool.Call, _ struct{}) (timeOut, error) {
	now := time.Now()
	out := timeOut{
		Now:    now.UTC().Format(time.RFC3339Nano),
		Uptime: int64(now.Sub(s.cfg.Host.About().Started) / time.Second),
	}
	out.MachineUptime, _ = host.UptimeWithContext(ctx) // missing if the system does not report it
	return out, nil
}

type infoOut struct {
	ID         string   `json:"id,omitempty"`
	Name       string   `json:"name"`
	Version    string   `json:"version,omitempty"`
	Started    string   `json:"started"`
	Transports []string `json:"transports" doc:"types of its listeners"`
	OS         system   `json:"os"`
	Hardware   hardware `json:"hardware"`
}

type system struct {
	Platform string `json:"platform" doc:"linux, darwin, windows"`
	Version  string `json:"version,omitempty" doc:"the distribution and its version"`
	Kernel   string `json:"kernel,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Language string `json:"language,omitempty" doc:"in which users of this host want answers"`
}

type hardware struct {
	Arch       string `json:"arch"`
	Processors int    `json:"processors" doc:"logical ones"`
	Model      string `json:"model,omitempty" doc:"of the processor"`
	RAM        uint64 `json:"ram,omitempty" doc:"bytes"`
	ZRAM       uint64 `json:"zram,omitempty" doc:"bytes of compressed swap in memory, before compression"`

	Devices []device `json:"devices"`
}

func (s *server) serverInfo(ctx context.Context, _ *tool.Call, _ struct{}) (infoOut, error) {
	a := s.cfg.Host.About()
	out := infoOut{
		ID: a.ID, Name: a.Name, Version: a.Version, Started: a.Started.UTC().Format(time.RFC3339Nano),
		Transports: a.Transports,
		OS:         system{Platform: runtime.GOOS, Language: a.Language},
		Hardware:   hardware{Arch: runtime.GOARCH, Processors: runtime.NumCPU()},
	}
	if h, err := host.InfoWithContext(ctx); err == nil {
		out.OS.Version, out.OS.Kernel, out.OS.Hostname = strings.TrimSpace(
			h.Platform+" "+h.PlatformVersion,
		), h.KernelVersion, h.Hostname
	}
	if all, err := cpu.InfoWithContext(ctx); err == nil && len(all) > 0 {
		out.Hardware.Model = all[0].ModelName
	}
	if m, err := mem.VirtualMemoryWithContext(ctx); err == nil {
		out.Hardware.RAM = m.Total
	}
	out.Hardware.ZRAM, _, _ = zramOf(sysfs)
	out.Hardware.Devices = append([]device{{Class: "processor", Product: out.Hardware.Model}}, devicesOf(sysfs)...)
	return out, nil
}
