#!/usr/bin/env bash
# run PROGRAM ARGUMENT...: runs a program, mpirun for one, with what lies in this folder: a part of Debian's tree, as packages or
# tests/gpu_pack.sh put it there. Open MPI looks for its parts where it was installed, unless it is told; of its ways to talk only the
# plain ones are tried, and of those none that a container may forbid.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lib=$root/usr/lib/x86_64-linux-gnu
export PATH=$root/bin:$root/usr/bin:$PATH
export LD_LIBRARY_PATH=$lib:$root/lib/x86_64-linux-gnu:$lib/openmpi/lib:$lib/pmix2/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OPAL_PREFIX=$root/usr OPAL_LIBDIR=$lib OPAL_PKGLIBDIR=$lib/openmpi OPAL_DATADIR=$root/usr/share OPAL_SYSCONFDIR=$root/etc/openmpi
export OMPI_MCA_mca_base_component_path=$lib/openmpi/lib/openmpi3 OMPI_MCA_mca_base_param_files=$root/etc/openmpi/openmpi-mca-params.conf
export PMIX_INSTALL_PREFIX=$lib/pmix2 PMIX_MCA_mca_base_component_path=$lib/pmix2/lib/pmix
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=/bin/false
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_MCA_btl_base_warn_component_unused=0 OMPI_MCA_mca_base_component_show_load_errors=0 GTEST_COLOR=no
if [[ -d $root/shared ]]; then export KOLO_SHARED_DIR=$root/shared; fi
exec "$@"
